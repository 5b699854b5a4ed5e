use std::thread::available_parallelism;

use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};

/// The process could not be prepared.
#[derive(Debug, thiserror::Error)]
#[error(
    "rayon's global pool cannot be made: prepare_process comes once, before anything that uses rayon, and on a thread \
     that is in no other pool"
)]
pub struct ProcessError {
    /// What rayon says.
    source: ThreadPoolBuildError,
}

/// Settings of the whole process that make training on the CPU faster. For a program to choose, once, at the start of
/// the thread that trains.
///
/// - The calling thread becomes one of the workers of `rayon`'s global pool, so that work starts on it at once instead
///   of when another thread has woken up, which for a small layer takes longer than its work. Call this on no other
///   thread than the one that trains: its share of the pool is idle when it does something else, and `rayon::broadcast`
///   from elsewhere waits for it. (With a single thread
///   the pool stays apart: other threads that use it would wait for the caller.)
/// - On Linux with glibc, freed memory stays with the process for the next step, up to 2 GiB, where glibc would return
///   it to the system, and the next step would wait while the system clears it.
///
/// The number of threads is that of `RAYON_NUM_THREADS`, or one a core.
///
/// # Errors
///
/// If `rayon`'s global pool exists already, the calling thread is a worker of another one, or a thread cannot be
/// started. The memory setting has been made all the same.
pub fn prepare_process() -> Result<(), ProcessError> {
    keep_freed_memory();
    let mut pool = ThreadPoolBuilder::new();
    if threads() > 1 {
        pool = pool.use_current_thread();
    }
    pool.build_global()
        .map_err(|source| ProcessError { source })
}

/// Threads that `rayon` would start by itself.
fn threads() -> usize {
    let named = std::env::var("RAYON_NUM_THREADS").ok();
    let named = named.and_then(|number| number.parse().ok());
    let all = || available_parallelism().map_or(1, usize::from);
    named.filter(|&number| number > 0).unwrap_or_else(all)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep_freed_memory() {
    /// Larger blocks are still mapped on their own.
    const LARGEST: libc::c_int = 1 << 30;
    /// The most that glibc before 2.35 accepts.
    const LARGEST_OF_OLD: libc::c_int = 32 << 20;
    // SAFETY: each call sets a number inside the allocator, under its own lock, and returns 0 if it refuses.
    unsafe {
        let accepted = libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST) != 0
            || libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST_OF_OLD) != 0;
        // alone, this would stop glibc from keeping blocks that it once mapped
        if accepted {
            libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
        }
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn keep_freed_memory() {}
