//! Rebuilds when a migration is added: `sqlx::migrate!` reads the folder when it is compiled.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
