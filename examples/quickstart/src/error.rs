use burn_frugal::Error as PlanError;
use burn_frugal::plan::ScheduleError;
use burn_frugal_models::Error as ModelError;
use std::io;
use std::path::PathBuf;

/// What can go wrong in the quickstart.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A contact sheet that does not decode.
    #[error("{sheet}: {source}")]
    Image {
        /// The contact sheet.
        sheet: &'static str,
        /// What the decoder says.
        source: image::ImageError,
    },
    /// A contact sheet of another size than its tiles need.
    #[error("{sheet}: expected {expected:?} pixels, found {found:?}")]
    SheetSize {
        /// The contact sheet.
        sheet: &'static str,
        /// Width and height that it should have.
        expected: (u32, u32),
        /// Width and height that it has.
        found: (u32, u32),
    },
    /// An argument that makes no sense.
    #[error("--{name}: expected {expected}, found {found}")]
    Argument {
        /// The flag.
        name: &'static str,
        /// What it has to be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The network or its weights.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A plan or its file.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A schedule of channels.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A file that cannot be written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Standard output cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    /// The picture cannot be drawn.
    #[error("the picture: {0}")]
    Picture(String),
}
