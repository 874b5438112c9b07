//! A file's bytes: parsed, and loaded where they are a model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use reference::gguf::{Gguf, Model, load_model};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(gguf) = Gguf::parse("fuzz", bytes.to_vec())
        && let Ok(model) = Model::new(&gguf)
    {
        let _ = load_model(&model, &|_, _| ());
    }
});
