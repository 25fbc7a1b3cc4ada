# Recipes are short names for cargo commands; nothing here needs `just`.

# Run a study: just ablate rmsnorm-swiglu
ablate *args:
    cargo ablate {{args}}

# What continuous integration runs
ci:
    bash .ci/run

# Compare exported models with Hugging Face transformers, which this installs from the Python package index
interop:
    python3 -m pip install torch transformers
    ABLATE_INTEROP=1 cargo test --package ablate --test interop

# The tests
test:
    cargo test --workspace
