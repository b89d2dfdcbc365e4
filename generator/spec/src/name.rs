//! One macro for enums whose values have a name that users type and files store.

/// Declares an enum together with its names: `Display`, `FromStr` and serde all use them.
macro_rules! named_enum {
    ($(#[$meta:meta])* $name:ident: $what:literal { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$vmeta])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name that users type and files store.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.iter().copied().find(|v| v.name() == text).ok_or_else(|| {
                    let known: Vec<_> = Self::ALL.iter().map(|v| v.name()).collect();
                    format!("unknown {} `{text}`; known: {}", $what, known.join(", "))
                })
            }
        }
    };
}
pub(crate) use named_enum;
