# `make help` lists the targets. Each works from a fresh clone on Debian 12 with Rust, gcc and make.

PREFIX ?= /usr/local
CARGO ?= cargo
# Where rustup puts cargo, for shells that did not read its profile.
export PATH := $(PATH):$(HOME)/.cargo/bin

HANDOFF := target/release/handoff
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)

.DEFAULT_GOAL := help
.PHONY: help setup build demo test soak bench report install clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: ## Install missing Debian packages (as root; nothing to do the second time)
	@scripts/setup

build: ## Build the command, its man pages and completions, and the library for C
	$(CARGO) build --release --package handoff-cli --package handoff-capi
	scripts/libhandoff target/release/libhandoff_capi.a target/dist/lib
	$(HANDOFF) man --all target/dist/man1
	mkdir -p $(addprefix target/dist/,bash zsh fish)
	$(HANDOFF) completions bash > target/dist/bash/handoff
	$(HANDOFF) completions zsh > target/dist/zsh/_handoff
	$(HANDOFF) completions fish > target/dist/fish/handoff.fish

demo: setup build ## Probe this machine, measure sending, copy 1 GiB, the same in the lab (as root)
	$(CARGO) xtask demo --handoff $(HANDOFF)

test: setup ## Run the checks and all tests, in stages; the last line counts them
	@scripts/setup chromium-headless-shell || echo "without a browser, tests of the report are skipped" >&2
	@scripts/setup curl netcat-openbsd socat || echo "without them, tests against them are skipped" >&2
	@$(CARGO) xtask test

soak: setup ## Run the tests in their long forms, for hours; adds the result to docs/figures/long-runs.md
	@$(CARGO) xtask test --soak
	@if [ -n "$(PEERS)" ]; then scripts/peers "$(PEERS)"; else \
		echo "other people's suites were not run: make soak PEERS=DIRECTORY (docs/testing.md)"; fi

bench: setup build ## Print every table of figures that this machine can (as root)
	$(HANDOFF) bench send
	$(HANDOFF) bench recv
	$(HANDOFF) bench splice
	$(HANDOFF) bench rds
	$(HANDOFF) bench block || [ $$? -eq 3 ] # 3: this machine's kernel has no ublk
	$(HANDOFF) bench send --lab || [ $$? -eq 3 ] # 3: this machine cannot run the lab
	$(HANDOFF) bench recv --lab || [ $$? -eq 3 ]
	$(HANDOFF) bench splice --lab || [ $$? -eq 3 ]
	$(HANDOFF) bench rds --lab || [ $$? -eq 3 ]
	$(HANDOFF) bench block --lab || [ $$? -eq 3 ]

report: setup build ## Write all of that and what is available as one page, handoff-report.html (as root)
	$(HANDOFF) report --lab

install: ## Install what `make build` built below PREFIX (/usr/local)
	install -D -m 755 $(HANDOFF) $(DESTDIR)$(PREFIX)/bin/handoff
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include/handoff bpf/blk_policy.h bpf/blk.h bpf/kernel.h
	install -D -m 644 crates/handoff-capi/include/handoff.h $(DESTDIR)$(PREFIX)/include/handoff.h
	install -D -m 644 target/release/libhandoff_capi.a $(DESTDIR)$(PREFIX)/lib/libhandoff.a
	cp --no-dereference target/dist/lib/libhandoff.so* $(DESTDIR)$(PREFIX)/lib/
	mkdir -p $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' crates/handoff-capi/handoff.pc.in \
	    > $(DESTDIR)$(PREFIX)/lib/pkgconfig/handoff.pc
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man1 target/dist/man1/*.1
	install -D -m 644 target/dist/bash/handoff $(DESTDIR)$(PREFIX)/share/bash-completion/completions/handoff
	install -D -m 644 target/dist/zsh/_handoff $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_handoff
	install -D -m 644 target/dist/fish/handoff.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/handoff.fish

clean: ## Remove everything that was built
	$(CARGO) clean
