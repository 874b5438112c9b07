//! Ctrl-C: what runs ends after its step in flight, with what it has.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);
static WAITING: AtomicBool = AtomicBool::new(false);

/// Listens from now on. A second Ctrl-C, and any while nothing runs, ends at once.
pub fn listen() {
    // A handler that cannot be set changes nothing else.
    let _ = ctrlc::set_handler(|| {
        if WAITING.load(Ordering::Relaxed) || ASKED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("stopping after the step in flight; Ctrl-C again ends at once");
    });
}

/// Whether the end was asked for.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Something runs that Ctrl-C is to end, or nothing does but the user is waited for;
/// what was asked before is forgotten.
pub fn waiting(waiting: bool) {
    WAITING.store(waiting, Ordering::Relaxed);
    ASKED.store(false, Ordering::Relaxed);
}

/// Asks for the end, as Ctrl-C does.
pub fn ask() {
    ASKED.store(true, Ordering::Relaxed);
}
