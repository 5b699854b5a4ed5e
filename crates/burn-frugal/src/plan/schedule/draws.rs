use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use super::ScheduleError;

/// When channels are drawn anew, and from which random numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub(super) struct Draws {
    /// Steps between two draws.
    period: usize,
    seed: u64,
    steps: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    period: usize,
    seed: u64,
    steps: u64,
}

impl TryFrom<Unchecked> for Draws {
    type Error = ScheduleError;

    fn try_from(unchecked: Unchecked) -> Result<Self, ScheduleError> {
        let draws = Self::new(unchecked.period, unchecked.seed)?;
        let steps = unchecked.steps;
        Ok(Self { steps, ..draws })
    }
}

impl Draws {
    pub(super) fn new(period: usize, seed: u64) -> Result<Self, ScheduleError> {
        match period {
            0 => Err(ScheduleError::Period),
            period => Ok(Self {
                period,
                seed,
                steps: 0,
            }),
        }
    }

    pub(super) fn advance(&mut self) {
        self.steps = self.steps.saturating_add(1);
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// The random numbers of a layer in the draw that holds now. They depend on the seed, the
    /// number of the draw and the layer's path, so no other state is needed to go on, and a layer's
    /// draw does not change with the layers around it.
    pub(super) fn generator(&self, path: &str) -> StdRng {
        let draw = self.steps / self.period as u64;
        let seed = mix(mix(mix(self.seed) ^ draw) ^ hash(path));
        StdRng::seed_from_u64(seed)
    }
}

/// One step of SplitMix64: a bijection that spreads each bit of its argument over all bits.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// FNV-1a of 64 bits; the standard library's hashes may change with its version.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
