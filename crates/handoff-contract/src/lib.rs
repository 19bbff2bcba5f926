//! Empty: the tests beside it check what users of the library may rely on.
//!
//! A package of its own, because the programs that must not compile are compiled with all dependencies of
//! their package, and `handoff`'s own tests have many.
