//! Guards plans' files: whatever happens while one is saved, readers find the old plan or the new.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use burn_frugal::plan::Plan;
use burn_frugal::{Error, Method};

use crate::user_model::{filter, plan_with};

fn files_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_plan_is_saved_and_loaded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("plan.json");
    for plan in [
        plan_with("a", filter(2)),
        Plan::default(),
        plan_with("b", filter(3)),
    ] {
        plan.save(&path).expect("a writable folder");
        assert_eq!(Plan::load(&path).expect("what was saved"), plan);
    }
    assert_eq!(
        files_in(folder.path()),
        ["plan.json"],
        "no temporary file stays"
    );
    let text = std::fs::read_to_string(&path).expect("a file");
    assert!(text.ends_with("}\n"), "a text file ends with a newline");
}

#[test]
fn a_plan_is_saved_in_the_working_folder() {
    let file = tempfile::NamedTempFile::new_in(".").expect("a writable package folder");
    let name = Path::new(file.path().file_name().expect("a file"));
    plan_with("a", filter(2))
        .save(name)
        .expect("a writable folder");
    assert_eq!(
        Plan::load(name).expect("what was saved"),
        plan_with("a", filter(2))
    );
}

#[cfg(unix)]
#[test]
fn a_saved_plan_has_the_permissions_of_a_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [plan, other] = ["plan.json", "other"].map(|name| folder.path().join(name));
    Plan::default().save(&plan).expect("a writable folder");
    std::fs::write(&other, "").expect("a writable folder");
    let mode = |path: &Path| {
        std::fs::metadata(path)
            .expect("a file")
            .permissions()
            .mode()
    };
    assert_eq!(mode(&plan), mode(&other));
}

#[test]
fn a_failed_save_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = folder.path().join("nowhere/plan.json");
    let error = Plan::default().save(&missing).unwrap_err();
    assert!(
        matches!(&error, Error::File { path, .. } if *path == missing),
        "{error}"
    );
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert_eq!(files_in(folder.path()), [""; 0]);

    // a folder in the way: everything succeeds but the last step
    let taken = folder.path().join("taken");
    std::fs::create_dir(&taken).expect("a writable folder");
    let error = Plan::default().save(&taken).unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error}");
    assert_eq!(files_in(folder.path()), ["taken"]);
    assert_eq!(files_in(&taken), [""; 0]);
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_keeps_its_plan() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("plan.json");
    let (old, new) = (plan_with("old", filter(2)), plan_with("new", filter(3)));
    old.save(&path).expect("a writable folder");
    let allow = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(), permissions).expect("my own folder");
    };
    allow(0o555);
    let saved = new.save(&path);
    let found = Plan::load(&path).expect("one of the two");
    allow(0o755);
    // the administrator may write everywhere
    match saved {
        Ok(()) => assert_eq!(found, new),
        Err(error) => {
            assert!(matches!(error, Error::File { .. }), "{error}");
            assert_eq!(found, old);
        }
    }
    assert_eq!(files_in(folder.path()), ["plan.json"]);
}

#[test]
fn a_reader_sees_the_old_plan_or_the_new() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("plan.json");
    let plans = [
        plan_with("short", Method::Exact),
        plan_with(&"long".repeat(5_000), filter(2)),
    ];
    plans[0].save(&path).expect("a writable folder");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) || reads == 0 {
                let plan = Plan::load(&path).expect("a whole plan");
                assert!(plans.contains(&plan));
                reads += 1;
            }
        });
        let written = (0..50).try_for_each(|turn: usize| plans[turn % 2].save(&path));
        done.store(true, Ordering::Relaxed);
        reader.join().expect("only whole plans");
        written.expect("a writable folder");
    });
}

#[test]
fn a_file_that_is_no_plan_is_named_in_the_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = folder.path().join("missing.json");
    let error = Plan::load(&missing).unwrap_err();
    assert!(
        matches!(&error, Error::File { path, .. } if *path == missing),
        "{error}"
    );
    assert!(error.to_string().contains("missing.json"), "{error}");

    let refused = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("a writable folder");
        let error = Plan::load(&path).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        error
    };
    assert!(matches!(
        refused("empty.json", b""),
        Error::NotADocument { .. }
    ));
    assert!(matches!(
        refused("other.json", b"{\"a\": 1}"),
        Error::NotADocument { .. }
    ));
    assert!(matches!(
        refused("newer.json", b"{\"version\": 9}"),
        Error::NewerDocument { .. }
    ));
    assert!(matches!(
        refused("binary.json", &[0xff, 0xfe, 0x00]),
        Error::File { .. }
    ));
    assert!(matches!(
        Plan::load(folder.path()).unwrap_err(),
        Error::File { .. }
    ));
}

#[cfg(unix)]
#[test]
fn a_saved_plan_keeps_the_permissions_and_the_link_that_were_there() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [plan, link] = ["plan.json", "link.json"].map(|name| folder.path().join(name));
    plan_with("old", filter(2))
        .save(&plan)
        .expect("a writable folder");
    std::fs::set_permissions(&plan, std::fs::Permissions::from_mode(0o600)).expect("my own file");
    std::os::unix::fs::symlink(&plan, &link).expect("a writable folder");

    let new = plan_with("new", filter(3));
    new.save(&link).expect("a writable folder");
    assert!(link.is_symlink());
    assert_eq!(Plan::load(&plan).expect("a plan"), new);
    let mode = std::fs::metadata(&plan)
        .expect("a file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}
