//! The page on ports.

use std::fs;
use std::path::Path;

use reports::porting;

#[test]
fn the_page_is_that_of_the_registry() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join(porting::PAGE);
    let committed = fs::read_to_string(committed).expect("the page is there");
    assert!(
        committed == porting::page(),
        "reports/{} is not what the registry says; `cargo xtask report` makes it",
        porting::PAGE
    );
}

#[test]
fn it_has_the_published_totals_and_their_sums() {
    let page = porting::page();
    for part in [
        "| 348 | 340 |",
        "| 634 | 624 |",
        "24 × 10 (in_proj, gdn_conv, gdn_gates, gdn_recur, gdn_norm_out, out_proj,",
        "= **348**",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}
