//! Checks of what callers promise.

/// Panics unless a slice has the length its shape says.
#[track_caller]
pub(crate) fn expect_len(operation: &str, argument: &str, expected: usize, found: usize) {
    assert!(
        found == expected,
        "{operation}: {argument} must have {expected} elements, found {found}"
    );
}
