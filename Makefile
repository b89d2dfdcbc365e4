# make tune       set-up, build, tune for the GPU that is here (or sm_100), print the table
# make test       set-up, every test that needs no GPU, formatting, lints
# make test-gpu   the tests that need a GPU; without one they fail
# make wheel      the Python wheel, into target/wheels
# make browser    only Chromium, in which the tests open the HTML report
# make toolchain  only the pinned CUDA compiler (and a disassembler for the tests), into .toolchain/

NVRTC     := nvidia-cuda-nvrtc==13.0.*
# The oldest wheel of it there is; it reads what older compilers make.
NVDISASM  := nvidia-cuda-nvdisasm==13.2.*
TOOLCHAIN := .toolchain/cuda-13.0.stamp
TUNE      := $(or $(CARGO_TARGET_DIR),target)/release/nvkv-tune
PYTHON    := target/python
MATURIN   := $(PYTHON)/maturin.stamp
PIP_QUIET := --quiet --disable-pip-version-check
MATURIN_BUILD = $(PYTHON)/maturin/bin/maturin build --quiet --manifest-path db/python/Cargo.toml
# One GPU that the driver lists is enough for --arch native; ARCH=sm_90 names another target.
ARCH      ?= $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU' && echo native || echo sm_100)
ARGS      ?=

.PHONY: tune build test test-python test-gpu wheel toolchain browser fmt-check clean

tune: toolchain build
	$(TUNE) --arch $(ARCH) $(ARGS)

build:
	cargo build --release -p nvkv-tuner

test: toolchain browser fmt-check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --workspace
	$(MAKE) test-python

# The wheel as pip installs it, on a bundle of made-up kernels.
test-python: $(MATURIN)
	rm -rf $(PYTHON)/wheels
	$(MATURIN_BUILD) --profile dev --out $(PYTHON)/wheels
	python3 -m pip install $(PIP_QUIET) --no-deps --upgrade --target $(PYTHON)/site $(PYTHON)/wheels/nvkv-*.whl
	cargo run --quiet -p nvkv-runtime --features fixture --example fixture -- $(PYTHON)/bundle
	NVKV_TEST_BUNDLE=$(PYTHON)/bundle PYTHONPATH=$(PYTHON)/site python3 -m unittest discover -s db/python/tests

wheel: $(MATURIN)
	$(MATURIN_BUILD) --release --out target/wheels

test-gpu: toolchain browser
	cargo test --workspace --features nvkv-tuner/gpu-tests

$(MATURIN):
	rm -rf $(PYTHON)/maturin
	python3 -m pip install $(PIP_QUIET) --only-binary :all: --target $(PYTHON)/maturin 'maturin==1.16.*'
	touch $@

toolchain: $(TOOLCHAIN)

# The stamp is written last, so that an interrupted download is done again.
$(TOOLCHAIN):
	@python3 -m pip --version >/dev/null 2>&1 || \
	  { echo "make toolchain needs python3 with pip: install them, or set NVKV_NVRTC to a folder with libnvrtc.so.13" >&2; exit 1; }
	rm -rf .toolchain && mkdir .toolchain
	python3 -m pip install $(PIP_QUIET) --no-deps --only-binary :all: \
	  --target .toolchain '$(NVRTC)' '$(NVDISASM)'
	touch $@

# A browser that is here is used (tuner/tests/browser); else root installs one where apt is, and others are told how.
browser:
	@for name in "$$NVKV_CHROMIUM" chromium chromium-browser google-chrome google-chrome-stable; do \
	  [ -n "$$name" ] && "$$name" --version >/dev/null 2>&1 && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; \
	else \
	  echo "the tests of the HTML report need Chromium: apt-get install chromium, or set NVKV_CHROMIUM to one" >&2; exit 1; \
	fi

fmt-check:
	cargo fmt --all --check

clean:
	cargo clean
	rm -rf .toolchain
