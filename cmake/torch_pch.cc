// The one source of the target that makes the precompiled header of tests and examples.
