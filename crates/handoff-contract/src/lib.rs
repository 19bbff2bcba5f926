//! Nothing: the tests beside it hold what users of the library may rely on.
//!
//! A package of its own, because the programs that must not compile are compiled with all
//! dependencies of their package, and those of `handoff`'s own tests are many.
