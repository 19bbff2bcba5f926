//! A function that is named like a question answers one.

use std::fs;
use std::path::PathBuf;

use syn::visit::{self, Visit};
use syn::{Attribute, File, ImplItemFn, ItemFn, ReturnType, Signature, TraitItemFn};

use crate::links::{files, root};

/// How the name of a question begins.
const QUESTIONS: [&str; 4] = ["are_", "has_", "is_", "was_"];

/// All Rust files of the tree.
pub(crate) fn rust_files() -> impl Iterator<Item = (PathBuf, File)> {
    let mut sources = Vec::new();
    files(&root(), &[".rs"], &mut sources);
    sources.into_iter().map(|path| {
        let text = fs::read_to_string(&path).expect("a source");
        let file = syn::parse_file(&text);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, file)
    })
}

#[test]
fn questions_have_an_answer() {
    let mut faults = Vec::new();
    for (path, file) in rust_files() {
        let found = unanswered(&file).into_iter();
        faults.extend(found.map(|name| format!("{}: {name}", path.display())));
    }
    assert!(faults.is_empty(), "these return nothing: a verb names them\n{}", faults.join("\n"));
}

#[test]
fn a_question_without_an_answer_is_found() {
    let source = "
        impl It {
            fn is_done(&self) { self.done.set(true) }
            fn has_room<T>(&self, most: impl Fn(T) -> bool) where T: Copy {}
            fn is_open(&self) -> bool { true }
            fn isolate(&self) {}
        }
        trait Other {
            fn was_here(&mut self);
        }
        #[test]
        fn is_a_test() {}
        #[tokio::test]
        async fn is_one_too() {}
    ";
    let found = unanswered(&syn::parse_file(source).expect("is Rust"));
    assert_eq!(found, ["is_done", "has_room", "was_here"]);
}

/// The functions that are named like questions and return nothing.
fn unanswered(file: &File) -> Vec<String> {
    let mut names = Names(Vec::new());
    names.visit_file(file);
    names.0
}

struct Names(Vec<String>);

impl Names {
    /// Names of tests are sentences.
    fn look(&mut self, attributes: &[Attribute], signature: &Signature) {
        let name = signature.ident.to_string();
        let is_test = attributes
            .iter()
            .filter_map(|attribute| attribute.path().segments.last())
            .any(|last| last.ident == "test");
        let asks = QUESTIONS.iter().any(|question| name.starts_with(question));
        if asks && !is_test && matches!(signature.output, ReturnType::Default) {
            self.0.push(name);
        }
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.look(&item.attrs, &item.sig);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.look(&item.attrs, &item.sig);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.look(&item.attrs, &item.sig);
        visit::visit_trait_item_fn(self, item);
    }
}
