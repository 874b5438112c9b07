//! One page with everything over all records: no other file, no script. A value shows
//! its numbers where it is pointed at.

use results::store::Store;

use crate::doc::Doc;
use crate::svg::style;

/// How the page looks around its pictures.
const STYLE: &str = "\
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:0 1rem;background:#fff;color:#222}
h1{font-size:1.6rem}h2{font-size:1.25rem;margin-top:2rem}
a{color:#0060a8}nav{padding:.75rem 0;border-bottom:1px solid #ddd}nav a{margin-right:1rem}
figure{margin:1rem 0}figure svg{display:block;width:100%;max-width:48rem;height:auto}figcaption{color:#5f5f5f;font-size:.9rem}
.table{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}th,td{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}th.n,td.n{text-align:right}
code{font-size:.9em}
";

/// The same on a dark page.
const DARK: &str = "\
@media (prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}a{color:#6cb6ff}nav,th,td{border-color:#30363d}figcaption{color:#9da7b3}}
";

/// The page.
pub(crate) fn page(store: &Store, docs: &[&Doc]) -> String {
    let links: String = (docs.iter())
        .map(|doc| {
            let name = doc.file.trim_end_matches(".md");
            format!("<a href=\"#{name}\">{name}</a>")
        })
        .collect();
    let sections: String = docs.iter().map(|doc| doc.html()).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>Zero-TVM workbench: records</title>\n<style>\n{STYLE}{}{DARK}</style>\n</head>\n<body>\n\
         <nav>{links}</nav>\n{sections}<footer><p>Made by <code>cargo xtask report</code> from {} runs, {} samples of single \
         kernels and {} figures of other engines.</p></footer>\n</body>\n</html>\n",
        style(),
        store.runs.len(),
        store.kernel_times.len(),
        store.external.len()
    )
}
