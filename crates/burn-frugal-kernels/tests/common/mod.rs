//! Definitions as plain loops, and small helpers. Every test file uses some of them.
#![allow(dead_code)]

use burn_frugal_kernels::{ConvGeometry, Element};

/// Reproducible numbers in -1..1.
pub fn numbers<T: Element>(len: usize, seed: u64) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            T::from_f64((state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0)
        })
        .collect()
}

pub fn widen<T: Element>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| value.to_f64()).collect()
}

/// What `f32` and `f64` results may differ from the definition, relative to its norm.
pub fn tolerance<T: Element>() -> f64 {
    if size_of::<T>() == 4 { 1e-5 } else { 1e-12 }
}

#[track_caller]
pub fn assert_close<T: Element>(name: &str, found: &[T], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{name}: length");
    let norm = expected
        .iter()
        .map(|value| value * value)
        .sum::<f64>()
        .sqrt();
    let difference = found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found.to_f64() - expected).powi(2))
        .sum::<f64>()
        .sqrt();
    assert!(
        difference <= tolerance::<T>() * norm,
        "{name}: relative error {:e}",
        difference / norm
    );
}

pub fn dot<T: Element>(left: &[T], right: &[T]) -> f64 {
    left.iter()
        .zip(right)
        .map(|(left, right)| left.to_f64() * right.to_f64())
        .sum()
}

/// Calls `visit(weight index, input index, output index)` for every product of the definition.
pub fn each_product(g: &ConvGeometry, mut visit: impl FnMut(usize, usize, usize)) {
    let [height, width] = g.output();
    let (inputs, outputs) = (g.input_channels / g.groups, g.output_channels / g.groups);
    for n in 0..g.batch {
        for o in 0..g.output_channels {
            for p in 0..height {
                for q in 0..width {
                    for c in 0..inputs {
                        for i in 0..g.kernel[0] {
                            for j in 0..g.kernel[1] {
                                let y = (g.stride[0] * p + g.dilation[0] * i) as isize
                                    - g.padding[0].0 as isize;
                                let x = (g.stride[1] * q + g.dilation[1] * j) as isize
                                    - g.padding[1].0 as isize;
                                if !(0..g.input[0] as isize).contains(&y)
                                    || !(0..g.input[1] as isize).contains(&x)
                                {
                                    continue;
                                }
                                let channel = o / outputs * inputs + c;
                                visit(
                                    ((o * inputs + c) * g.kernel[0] + i) * g.kernel[1] + j,
                                    ((n * g.input_channels + channel) * g.input[0] + y as usize)
                                        * g.input[1]
                                        + x as usize,
                                    ((n * g.output_channels + o) * height + p) * width + q,
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

pub fn conv2d(g: &ConvGeometry, input: &[f64], weight: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let mut output = vec![0.0; g.output_len()];
    if let Some(bias) = bias {
        let [height, width] = g.output();
        for (index, value) in output.iter_mut().enumerate() {
            *value = bias[index / (height * width) % g.output_channels];
        }
    }
    each_product(g, |w, x, y| output[y] += weight[w] * input[x]);
    output
}

pub fn conv2d_input_gradient(
    g: &ConvGeometry,
    weight: &[f64],
    output_gradient: &[f64],
) -> Vec<f64> {
    let mut input_gradient = vec![0.0; g.input_len()];
    each_product(g, |w, x, y| {
        input_gradient[x] += weight[w] * output_gradient[y]
    });
    input_gradient
}

pub fn conv2d_weight_gradient(
    g: &ConvGeometry,
    input: &[f64],
    output_gradient: &[f64],
) -> Vec<f64> {
    let mut weight_gradient = vec![0.0; g.weight_len()];
    each_product(g, |w, x, y| {
        weight_gradient[w] += output_gradient[y] * input[x]
    });
    weight_gradient
}

/// Numbers for one geometry.
pub struct Case<T> {
    pub geometry: ConvGeometry,
    pub input: Vec<T>,
    pub weight: Vec<T>,
    pub bias: Vec<T>,
    pub output_gradient: Vec<T>,
}

/// Results of every kernel on a case: output with and without bias, input, weight and bias gradients.
#[derive(Debug, PartialEq)]
pub struct Results<T> {
    pub output: Vec<T>,
    pub unbiased: Vec<T>,
    pub input_gradient: Vec<T>,
    pub weight_gradient: Vec<T>,
    pub bias_gradient: Vec<T>,
}

impl<T: Element> Case<T> {
    pub fn new(geometry: ConvGeometry) -> Self {
        Self {
            geometry,
            input: numbers(geometry.input_len(), 1),
            weight: numbers(geometry.weight_len(), 2),
            bias: numbers(geometry.output_channels, 3),
            output_gradient: numbers(geometry.output_len(), 4),
        }
    }

    /// Runs every kernel.
    pub fn run(&self) -> Results<T> {
        let g = &self.geometry;
        let pixels = g.output().iter().product();
        let (x, w, gy) = (&self.input, &self.weight, &self.output_gradient);
        Results {
            output: burn_frugal_kernels::conv2d(g, x, w, Some(&self.bias)),
            unbiased: burn_frugal_kernels::conv2d(g, x, w, None),
            input_gradient: burn_frugal_kernels::conv2d_input_gradient(g, w, gy),
            weight_gradient: burn_frugal_kernels::conv2d_weight_gradient(g, x, gy),
            bias_gradient: burn_frugal_kernels::channel_sums(
                g.batch,
                g.output_channels,
                pixels,
                gy,
            ),
        }
    }

    /// Compares every kernel with its definition.
    #[track_caller]
    pub fn check(&self, name: &str) {
        let results = self.run();
        let g = &self.geometry;
        let [height, width] = g.output();
        let (x, w, gy) = (
            widen(&self.input),
            widen(&self.weight),
            widen(&self.output_gradient),
        );
        assert_close(
            &format!("{name}: output"),
            &results.output,
            &conv2d(g, &x, &w, Some(&widen(&self.bias))),
        );
        assert_close(
            &format!("{name}: output without bias"),
            &results.unbiased,
            &conv2d(g, &x, &w, None),
        );
        assert_close(
            &format!("{name}: input gradient"),
            &results.input_gradient,
            &conv2d_input_gradient(g, &w, &gy),
        );
        assert_close(
            &format!("{name}: weight gradient"),
            &results.weight_gradient,
            &conv2d_weight_gradient(g, &x, &gy),
        );
        let mut sums = vec![0.0; g.output_channels];
        for (index, value) in gy.iter().enumerate() {
            sums[index / (height * width) % g.output_channels] += value;
        }
        // Sums of signed numbers cancel: compare with what was summed, not with what is left.
        for (found, expected) in results.bias_gradient.iter().zip(&sums) {
            let bound = tolerance::<T>() * (g.batch * height * width) as f64;
            assert!(
                (found.to_f64() - expected).abs() <= bound,
                "{name}: bias gradient"
            );
        }
    }
}

/// Calls `work` in a pool of so many threads.
pub fn with_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .expect("a small thread pool can be started")
        .install(work)
}

/// A geometry with symmetric padding.
pub fn geometry(
    [batch, input_channels, height, width]: [usize; 4],
    output_channels: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
) -> ConvGeometry {
    ConvGeometry {
        batch,
        input_channels,
        output_channels,
        input: [height, width],
        kernel,
        stride,
        padding: padding.map(|size| (size, size)),
        dilation,
        groups,
    }
}
