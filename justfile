# Recipes are short names for cargo commands; nothing here needs `just`.

# Run a study: just ablate rmsnorm-swiglu
ablate *args:
    cargo ablate {{args}}

# What continuous integration runs
ci:
    bash .ci/run

# The tests
test:
    cargo test --workspace
