//! The templates are embedded: a change of theirs rebuilds the crate.

fn main() {
    println!("cargo::rerun-if-changed=../templates");
}
