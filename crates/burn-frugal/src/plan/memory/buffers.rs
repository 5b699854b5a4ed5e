//! Counting the bytes of buffers that are allocated, shared and freed.

/// A buffer's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffer(usize);

/// Buffers with the number of those who hold them.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// Bytes and holders.
    buffers: Vec<(usize, usize)>,
    live: usize,
    peak: usize,
}

impl Buffers {
    /// A new buffer with one holder.
    pub fn allocate(&mut self, bytes: usize) -> Buffer {
        self.buffers.push((bytes, 1));
        self.live += bytes;
        self.peak = self.peak.max(self.live);
        Buffer(self.buffers.len() - 1)
    }

    /// One more holder.
    pub fn share(&mut self, buffer: Buffer) -> Buffer {
        self.buffers[buffer.0].1 += 1;
        buffer
    }

    /// One holder less; the last one frees it.
    pub fn release(&mut self, buffer: Buffer) {
        let (bytes, holders) = &mut self.buffers[buffer.0];
        *holders -= 1;
        if *holders == 0 {
            self.live -= *bytes;
        }
    }

    /// Whether a buffer has only one holder, who may write to it.
    pub fn is_unique(&self, buffer: Buffer) -> bool {
        self.buffers[buffer.0].1 == 1
    }

    /// Its size.
    pub fn bytes(&self, buffer: Buffer) -> usize {
        self.buffers[buffer.0].0
    }

    /// Something is there for a moment.
    pub fn during(&mut self, bytes: usize) {
        self.peak = self.peak.max(self.live + bytes);
    }

    /// Bytes that are there now.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Starts a new peak and returns the one before.
    pub fn restart_peak(&mut self) -> usize {
        std::mem::replace(&mut self.peak, self.live)
    }
}
