//! The product, which lies beside the workshop.

use std::path::Path;

use handoff_sys::companion::PRODUCT;

/// The path of the program `handoff`.
pub(crate) fn product() -> String {
    let product = Path::new(env!("CARGO_BIN_EXE_handoff-workshop")).with_file_name(PRODUCT);
    product.into_os_string().into_string().expect("UTF-8")
}
