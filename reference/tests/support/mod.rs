//! Golden data: where it lies, and a reader of its safetensors files.

#![allow(clippy::disallowed_methods, reason = "a test is its own command line")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Golden data that the repository carries.
const CARRIED: [&str; 3] = ["llama-tiny", "modules", "quant"];

/// A golden file or folder; none (said on standard error) where the data are
/// not there. In CI the absence of what the repository carries is a failure.
pub(crate) fn golden(name: &str) -> Option<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = std::env::var_os("ZEROTVM_GOLDEN").map(PathBuf::from);
    let places = [
        "tests/golden",
        "../../shared/golden",
        "../../../shared/golden",
    ];
    let places = places.map(|place| manifest.join(place));
    let mut places = named.into_iter().chain(places);
    let found = places.find_map(|p| Some(p.join(name)).filter(|p| p.exists()));
    if found.is_none() {
        let missing = format!("golden data `{name}` not found; set ZEROTVM_GOLDEN");
        let carried = CARRIED
            .iter()
            .any(|folder| Path::new(name).starts_with(folder));
        let ci = std::env::var_os("CI").is_some();
        assert!(!(carried && ci), "{missing}");
        eprintln!("UNRUN: {missing}");
    }
    found
}

/// A tensor as f64, whatever it was stored as.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f64>,
}

impl Array {
    /// Rows along the first axis.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[f64]> {
        self.data.chunks_exact(self.data.len() / self.shape[0])
    }

    /// Values that are counts or ids.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.data.iter().map(|&v| v as u32).collect()
    }
}

/// All tensors of a safetensors file, by name.
pub(crate) fn safetensors(path: &Path) -> BTreeMap<String, Array> {
    let bytes = std::fs::read(path).expect("golden file is readable");
    let (len, rest) = bytes.split_first_chunk::<8>().expect("header length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let header: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(header).expect("header is JSON");
    let tensors = header
        .into_iter()
        .filter(|(name, _)| name != "__metadata__");
    tensors
        .map(|(name, meta)| {
            let numbers = |key: &str| -> Vec<usize> {
                let numbers = meta[key].as_array().expect("a list").iter();
                numbers
                    .map(|n| n.as_u64().expect("a count") as usize)
                    .collect()
            };
            let range = numbers("data_offsets");
            let raw = &data[range[0]..range[1]];
            let array = Array {
                shape: numbers("shape"),
                data: decode(meta["dtype"].as_str().expect("a dtype"), raw),
            };
            (name, array)
        })
        .collect()
}

fn decode(dtype: &str, raw: &[u8]) -> Vec<f64> {
    let words = || raw.as_chunks::<4>().0.iter();
    match dtype {
        "F32" => words().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
        "I32" => words().map(|b| f64::from(i32::from_le_bytes(*b))).collect(),
        "U32" => words().map(|b| f64::from(u32::from_le_bytes(*b))).collect(),
        "F16" => {
            let halves = raw.as_chunks::<2>().0.iter();
            halves
                .map(|b| half::f16::from_le_bytes(*b).to_f64())
                .collect()
        }
        "U8" => raw.iter().map(|&b| f64::from(b)).collect(),
        other => panic!("dtype {other} in golden data"),
    }
}

/// Largest absolute difference; infinite where one is NaN.
pub(crate) fn max_difference(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "equal lengths");
    let differences = found.iter().zip(expected).map(|(f, e)| (f - e).abs());
    differences.fold(0.0, |max: f64, d| {
        if d.is_nan() {
            f64::INFINITY
        } else {
            max.max(d)
        }
    })
}
