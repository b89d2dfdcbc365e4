# make tune       set-up, build, tune for the GPU that is here (or sm_100), print the table
# make test       set-up, every test that needs no GPU, formatting, lints
# make test-gpu   the tests that need a GPU; without one they fail
# make toolchain  only the pinned CUDA compiler, into .toolchain/

NVRTC     := nvidia-cuda-nvrtc==13.0.*
TOOLCHAIN := .toolchain/nvrtc-13.0.stamp
TUNE      := target/release/nvkv-tune
# One GPU that the driver lists is enough for --arch native; ARCH=sm_90 names another target.
ARCH      ?= $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU' && echo native || echo sm_100)
ARGS      ?=

.PHONY: tune build test test-gpu toolchain fmt-check clean

tune: toolchain build
	$(TUNE) --arch $(ARCH) $(ARGS)

build:
	cargo build --release -p nvkv-tuner

test: toolchain fmt-check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --workspace

test-gpu: toolchain
	cargo test --workspace --features nvkv-tuner/gpu-tests

toolchain: $(TOOLCHAIN)

# The stamp is written last, so that an interrupted download is done again.
$(TOOLCHAIN):
	@python3 -m pip --version >/dev/null 2>&1 || \
	  { echo "make toolchain needs python3 with pip: install them, or set NVKV_NVRTC to a folder with libnvrtc.so.13" >&2; exit 1; }
	rm -rf .toolchain && mkdir .toolchain
	python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
	  --target .toolchain '$(NVRTC)'
	touch $@

fmt-check:
	cargo fmt --all --check

clean:
	cargo clean
	rm -rf .toolchain
