//! The modules of a crate, and what each of them names of the others.
//!
//! The place of a definition counts: re-exports are followed. Test code does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// The path of a module below its crate; that of the crate itself is empty.
pub(super) type ModulePath = Vec<String>;

/// A crate: all its modules by their paths.
#[derive(Default)]
pub(super) struct Crate {
    modules: BTreeMap<ModulePath, Module>,
    /// Where exported macros are defined, which belong to the crate itself.
    macros: BTreeMap<String, ModulePath>,
}

/// One place where a module names something of another one.
#[derive(Clone, Debug)]
pub(super) struct Import {
    pub(super) file: PathBuf,
    pub(super) line: usize,
    /// As it stands there.
    pub(super) text: String,
    pub(super) from: ModulePath,
    /// The module that defines it.
    pub(super) to: ModulePath,
}

#[derive(Default)]
struct Module {
    file: PathBuf,
    named: Vec<(Vec<String>, usize)>,
    /// The targets of `use` lines here, by name.
    bound: BTreeMap<String, Vec<String>>,
    /// Modules all of whose names are visible here.
    globs: Vec<Vec<String>>,
    defined: BTreeSet<String>,
}

/// Deeper than any chain of re-exports.
const DEEPEST: usize = 32;

impl Crate {
    /// Reads the crate with this root, such as `src/lib.rs`.
    pub(super) fn read(root: &Path) -> Self {
        let mut found = Self::default();
        let directory = root.parent().expect("a file is in a directory");
        found.read_file(root, directory, Vec::new());
        found
    }

    fn read_file(&mut self, file: &Path, children: &Path, path: ModulePath) {
        let text =
            fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed =
            syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut reader = Reader {
            found: self,
            file: file.to_owned(),
            children: children.to_owned(),
            path,
            module: Module { file: file.to_owned(), ..Module::default() },
        };
        reader.visit_file(&parsed);
        let Reader { path, module, .. } = reader;
        self.modules.insert(path, module);
    }

    pub(super) fn modules(&self) -> impl Iterator<Item = &ModulePath> {
        self.modules.keys()
    }

    /// What modules name of other modules, in the order of the sources.
    pub(super) fn imports(&self) -> Vec<Import> {
        let mut found = Vec::new();
        for (from, module) in &self.modules {
            for (path, line) in &module.named {
                let Some(to) = self.resolve(from, path, 0) else { continue };
                // A name that a `use` line brings in was counted with that line.
                let through = module.bound.get(&path[0]).filter(|bound| *bound != path);
                let told = through.and_then(|bound| self.resolve(from, bound, 0));
                if to != *from && told.as_ref() != Some(&to) {
                    let (file, line, text) = (module.file.clone(), *line, path.join("::"));
                    found.push(Import { file, line, text, from: from.clone(), to });
                }
            }
        }
        found
    }

    /// The module that defines what `path` names in the module `from`; `None` for other crates.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let module = &self.modules[from];
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            _ if depth > DEEPEST => None,
            "crate" => self.descend(&[], rest, depth),
            "self" => self.descend(from, rest, depth),
            "super" => {
                let (_, mut parent) = from.split_last()?;
                let above = rest.iter().take_while(|word| *word == "super").count();
                parent = parent.get(..parent.len().checked_sub(above)?)?;
                self.descend(parent, &rest[above..], depth)
            }
            name if self.is_module(from, name) => self.descend(from, path, depth),
            name => {
                let bound = module.bound.get(name).filter(|bound| **bound != [name])?;
                let whole: Vec<_> = bound.iter().chain(rest).cloned().collect();
                self.resolve(from, &whole, depth + 1)
            }
        }
    }

    /// The module that defines what `path` names, seen from the inside of the module `base`.
    fn descend(&self, base: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let module = &self.modules[base];
        let Some((first, rest)) = path.split_first() else { return Some(base.to_vec()) };
        if let Some(place) = self.macros.get(first).filter(|_| base.is_empty()) {
            return Some(place.clone());
        }
        if self.is_module(base, first) {
            return self.descend(&[base, std::slice::from_ref(first)].concat(), rest, depth);
        }
        if let Some(bound) = module.bound.get(first) {
            let whole: Vec<_> = bound.iter().chain(rest).cloned().collect();
            return self.resolve(base, &whole, depth + 1).or_else(|| Some(base.to_vec()));
        }
        if !module.defined.contains(first) && depth <= DEEPEST {
            for glob in &module.globs {
                let Some(target) = self.resolve(base, glob, depth + 1) else { continue };
                if target != base && self.has(&target, first) {
                    return self.descend(&target, path, depth + 1);
                }
            }
        }
        Some(base.to_vec())
    }

    fn is_module(&self, parent: &[String], name: &str) -> bool {
        self.modules.contains_key(&[parent, &[name.to_owned()]].concat())
    }

    fn has(&self, module: &[String], name: &str) -> bool {
        let within = &self.modules[module];
        self.is_module(module, name)
            || within.defined.contains(name)
            || within.bound.contains_key(name)
    }
}

/// Reads one file, or a module within it.
struct Reader<'a> {
    found: &'a mut Crate,
    file: PathBuf,
    /// Where the files of child modules are.
    children: PathBuf,
    path: ModulePath,
    module: Module,
}

impl Reader<'_> {
    fn child(&mut self, item: &syn::ItemMod) {
        let name = item.ident.to_string();
        let path = [self.path.as_slice(), std::slice::from_ref(&name)].concat();
        let children = self.children.join(&name);
        if let Some((_, items)) = &item.content {
            let mut reader = Reader {
                found: self.found,
                file: self.file.clone(),
                children,
                path,
                module: Module { file: self.file.clone(), ..Module::default() },
            };
            items.iter().for_each(|item| reader.visit_item(item));
            let Reader { path, module, .. } = reader;
            self.found.modules.insert(path, module);
        } else if let Some(place) = item.attrs.iter().find_map(path_attribute) {
            let file = self.file.parent().expect("a file is in a directory").join(place);
            let children = file.parent().expect("a file is in a directory").to_owned();
            self.found.read_file(&file, &children, path);
        } else {
            let file = self.children.join(format!("{name}.rs"));
            let file = if file.exists() { file } else { children.join("mod.rs") };
            self.found.read_file(&file, &children, path);
        }
    }

    fn flatten(&mut self, tree: &UseTree, mut path: Vec<String>) {
        match tree {
            UseTree::Path(step) => {
                path.push(step.ident.to_string());
                self.flatten(&step.tree, path);
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.flatten(tree, path.clone()));
            }
            UseTree::Glob(star) => {
                self.module.named.push((path.clone(), star.span().start().line));
                self.module.globs.push(path);
            }
            UseTree::Name(name) => self.bind(path, &name.ident, &name.ident),
            UseTree::Rename(rename) => self.bind(path, &rename.ident, &rename.rename),
        }
    }

    fn bind(&mut self, mut path: Vec<String>, what: &syn::Ident, name: &syn::Ident) {
        if what != "self" {
            path.push(what.to_string());
        }
        let name = if name == "self" { path.last().cloned() } else { Some(name.to_string()) };
        self.module.named.push((path.clone(), what.span().start().line));
        if let Some(name) = name {
            self.module.bound.insert(name, path);
        }
    }

    /// Paths among the words of a macro; only the macro knows its grammar.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) => {
                    let mut path = vec![first.to_string()];
                    while let Some([TokenTree::Punct(a), TokenTree::Punct(b), next]) =
                        tokens.get(at + 1..at + 4)
                        && let (':', ':', TokenTree::Ident(next)) = (a.as_char(), b.as_char(), next)
                    {
                        path.push(next.to_string());
                        at += 3;
                    }
                    if path.len() > 1 {
                        self.module.named.push((path, first.span().start().line));
                    }
                }
                // As in serde's attributes.
                TokenTree::Literal(word) => {
                    let text = syn::parse_str::<syn::LitStr>(&word.to_string());
                    if let Ok(path) = text.and_then(|text| text.parse::<syn::Path>()) {
                        let words = path.segments.iter().map(|it| it.ident.to_string()).collect();
                        self.module.named.push((words, word.span().start().line));
                    }
                }
                TokenTree::Punct(_) => {}
            }
            at += 1;
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = of_item(item);
        if attributes.iter().any(is_aside) {
            return;
        }
        match item {
            Item::Mod(child) => return self.child(child),
            Item::Use(line) => return self.flatten(&line.tree, Vec::new()),
            Item::Macro(_) if attributes.iter().any(|it| it.path().is_ident("macro_export")) => {
                self.found.macros.extend(name.map(|name| (name, self.path.clone())));
            }
            _ => self.module.defined.extend(name),
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !item.attrs.iter().any(is_aside) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 && path.leading_colon.is_none() {
            let words = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.module.named.push((words, path.span().start().line));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.visit_path(&item.path);
        self.tokens(item.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }

    /// A visibility is no import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

fn of_item(item: &Item) -> (&[Attribute], Option<String>) {
    let (attributes, name) = match item {
        Item::Const(it) => (&it.attrs, Some(&it.ident)),
        Item::Enum(it) => (&it.attrs, Some(&it.ident)),
        Item::Fn(it) => (&it.attrs, Some(&it.sig.ident)),
        Item::Impl(it) => (&it.attrs, None),
        Item::Macro(it) => (&it.attrs, it.ident.as_ref()),
        Item::Mod(it) => (&it.attrs, Some(&it.ident)),
        Item::Static(it) => (&it.attrs, Some(&it.ident)),
        Item::Struct(it) => (&it.attrs, Some(&it.ident)),
        Item::Trait(it) => (&it.attrs, Some(&it.ident)),
        Item::Type(it) => (&it.attrs, Some(&it.ident)),
        Item::Union(it) => (&it.attrs, Some(&it.ident)),
        Item::Use(it) => (&it.attrs, None),
        _ => return (&[], None),
    };
    (attributes, name.map(ToString::to_string))
}

/// Whether an item is in no program: it is for tests, or for pages.
fn is_aside(attribute: &Attribute) -> bool {
    let Ok(list) = attribute.meta.require_list() else { return false };
    let condition = list.tokens.to_string();
    let asides = ["all (test", "all (doc"];
    list.path.is_ident("cfg")
        && (condition == "test" || asides.iter().any(|it| condition.starts_with(it)))
}

fn path_attribute(attribute: &Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    let syn::Expr::Lit(value) = &pair.value else { return None };
    let syn::Lit::Str(text) = &value.lit else { return None };
    pair.path.is_ident("path").then(|| text.value())
}
