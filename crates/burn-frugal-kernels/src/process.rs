use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};

/// The process could not be prepared.
#[derive(Debug, thiserror::Error)]
#[error(
    "rayon's global pool cannot be made (prepare_process comes before anything that uses it): {source}"
)]
pub struct ProcessError {
    /// What rayon says.
    #[from]
    source: ThreadPoolBuildError,
}

/// Settings of the whole process that make training on the CPU faster. For a program to choose, once, at the start of
/// the thread that trains.
///
/// - The calling thread becomes one of the workers of `rayon`'s global pool, so that work starts on it at once instead
///   of when another thread has woken up, which for a small layer takes longer than its work. Call this on no other
///   thread than the one that trains: its share of the pool is idle when it does something else.
/// - On Linux with glibc, freed memory stays with the process for the next step, up to 2 GiB, where glibc would return
///   it to the system, and the next step would wait while the system clears it. The peak is the same.
///
/// The number of threads is that of `RAYON_NUM_THREADS`, or one a core.
///
/// # Errors
///
/// If `rayon`'s global pool exists already. The memory setting has been made all the same.
pub fn prepare_process() -> Result<(), ProcessError> {
    keep_freed_memory();
    ThreadPoolBuilder::new()
        .use_current_thread()
        .build_global()?;
    Ok(())
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep_freed_memory() {
    /// Larger blocks are still mapped on their own.
    const LARGEST: libc::c_int = 1 << 30;
    // SAFETY: both calls set a number inside the allocator, under its own lock. One that it refuses changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn keep_freed_memory() {}
