//! The page, drawn from fixed results: as text, and in a browser.

mod browser;
mod markup;
mod sample;
mod style;
