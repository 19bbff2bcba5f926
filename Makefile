# `make help` lists the targets. Each works from a fresh clone on Debian 12 with Rust, gcc and make.

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
CARGO ?= cargo
# Where rustup puts cargo, for shells that did not read its profile.
export PATH := $(PATH):$(HOME)/.cargo/bin

HANDOFF := target/release/handoff
WORKSHOP := target/release/handoff-workshop
ARCHIVE := target/release/libhandoff_capi.a
DIST := target/dist
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)

.DEFAULT_GOAL := help
.PHONY: help setup build workshop dist dist-workshop completions demo test soak bench report published install
.PHONY: install-workshop packages clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

setup: ## Install missing Debian packages (as root; nothing to do the second time)
	@scripts/setup

build: ## Build the command, its man pages and completions, and the library for C
	$(CARGO) build --release --package handoff-cli
	@# The static library alone: beside a Rust library it is not built as one unit with what it uses.
	$(CARGO) rustc --release --package handoff-capi --lib --crate-type staticlib
	@$(MAKE) --no-print-directory dist

workshop: ## Build handoff-workshop too: benches, reports, the lab, the tour; its man pages and completions
	$(CARGO) build --release --package handoff-workshop --package handoff-cli
	@$(MAKE) --no-print-directory dist-workshop

# What is made of the command and of the library.
dist: completions
	scripts/libhandoff "$(ARCHIVE)" "$(DIST)/lib"
	"$(HANDOFF)" man --all "$(DIST)/man1"

# What is made of the workshop.
dist-workshop: completions
	"$(WORKSHOP)" man --all "$(DIST)/workshop/man1"
	mkdir -p "$(DIST)/workshop/bash" "$(DIST)/workshop/zsh" "$(DIST)/workshop/fish"
	"$(WORKSHOP)" completions bash > "$(DIST)/workshop/bash/handoff-workshop"
	"$(WORKSHOP)" completions zsh > "$(DIST)/workshop/zsh/_handoff-workshop"
	"$(WORKSHOP)" completions fish > "$(DIST)/workshop/fish/handoff-workshop.fish"

# With the workshop's commands, where it is built.
completions:
	mkdir -p "$(DIST)/bash" "$(DIST)/zsh" "$(DIST)/fish"
	"$(HANDOFF)" completions bash > "$(DIST)/bash/handoff"
	"$(HANDOFF)" completions zsh > "$(DIST)/zsh/_handoff"
	"$(HANDOFF)" completions fish > "$(DIST)/fish/handoff.fish"

demo: setup ## Probe this machine, measure sending, and copy 1 GiB; then the same in the lab (as root)
	$(CARGO) build --profile quick --package handoff-workshop --package handoff-cli --package xtask
	target/quick/xtask demo

test: setup ## Run the checks and all tests, in stages; the last line counts them
	@scripts/setup chromium-headless-shell || echo "without a browser, tests of the report are skipped" >&2
	@scripts/setup curl gnutls-bin libnbd-bin nbdkit netcat-openbsd openssl qemu-utils socat || echo "without them, tests against them are skipped" >&2
	@scripts/setup bubblewrap debhelper dh-dkms fakeroot || echo "without them, tests of packages are skipped" >&2
	@# Who kills make, kills what it has begun, too.
	@setpriv --pdeathsig KILL $(CARGO) xtask test

soak: setup ## Run the long forms of the tests, for hours (CHANGED=REV: of what has changed, for an hour); add the result
	@status=0; $(CARGO) xtask test --soak $(if $(PART),--part $(PART)) $(if $(CHANGED),--changed $(CHANGED)) || status=$$?; \
	if [ -n "$(PEERS)" ]; then scripts/peers "$(PEERS)" || status=$$?; else \
		echo "other people's suites were not run: make soak PEERS=DIRECTORY (docs/testing.md)"; fi; \
	exit $$status

bench: setup workshop ## Print every table of figures that this machine can make (as root)
	$(HANDOFF) bench send
	$(HANDOFF) bench recv
	$(HANDOFF) bench splice
	$(HANDOFF) bench rds
	$(HANDOFF) bench block || [ $$? -eq 3 ] # 3: this machine's kernel has no ublk
	$(HANDOFF) bench http || [ $$? -eq 3 ] # 3: wrk is not installed
	$(HANDOFF) bench tls
	$(HANDOFF) bench send --lab || [ $$? -eq 3 ] # 3: this machine cannot run the lab
	$(HANDOFF) bench recv --lab || [ $$? -eq 3 ]
	$(HANDOFF) bench splice --lab || [ $$? -eq 3 ]
	$(HANDOFF) bench rds --lab || [ $$? -eq 3 ]
	$(HANDOFF) bench block --lab || [ $$? -eq 3 ]
	$(HANDOFF) bench http --lab || [ $$? -eq 3 ]
	$(HANDOFF) bench tls --lab || [ $$? -eq 3 ]

report: setup workshop ## Write these tables, and what this machine can do, as one page, handoff-report.html (as root)
	$(HANDOFF) report --lab

published: ## Check licences, known faults, the oldest Rust and the API (SINCE=REV), if the tools are installed
	$(CARGO) xtask published $(if $(SINCE),--since $(SINCE))

install: ## Install what `make build` built below PREFIX (/usr/local)
	install -D -m 755 "$(HANDOFF)" "$(DESTDIR)$(PREFIX)/bin/handoff"
	install -D -m 644 -t "$(DESTDIR)$(PREFIX)/include/handoff" bpf/blk_policy.h bpf/blk.h bpf/kernel.h
	install -D -m 644 crates/handoff-capi/include/handoff.h "$(DESTDIR)$(PREFIX)/include/handoff.h"
	install -D -m 644 "$(ARCHIVE)" "$(DESTDIR)$(LIBDIR)/libhandoff.a"
	cp --no-dereference "$(DIST)/lib/libhandoff.so"* "$(DESTDIR)$(LIBDIR)/"
	mkdir -p "$(DESTDIR)$(LIBDIR)/pkgconfig"
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' crates/handoff-capi/handoff.pc.in \
	    > "$(DESTDIR)$(LIBDIR)/pkgconfig/handoff.pc"
	install -D -m 644 -t "$(DESTDIR)$(PREFIX)/share/man/man1" "$(DIST)/man1/"*.1
	install -D -m 644 "$(DIST)/bash/handoff" "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/handoff"
	install -D -m 644 "$(DIST)/zsh/_handoff" "$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_handoff"
	install -D -m 644 "$(DIST)/fish/handoff.fish" "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/handoff.fish"

install-workshop: ## Install what `make workshop` built below PREFIX, too
	install -D -m 755 "$(WORKSHOP)" "$(DESTDIR)$(PREFIX)/bin/handoff-workshop"
	install -D -m 644 -t "$(DESTDIR)$(PREFIX)/share/man/man1" "$(DIST)/workshop/man1/"*.1
	install -D -m 644 "$(DIST)/workshop/bash/handoff-workshop" \
	    "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/handoff-workshop"
	install -D -m 644 "$(DIST)/workshop/zsh/_handoff-workshop" \
	    "$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_handoff-workshop"
	install -D -m 644 "$(DIST)/workshop/fish/handoff-workshop.fish" \
	    "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/handoff-workshop.fish"

packages: setup build workshop ## Build both and pack them as Debian packages, in target/packages
	@scripts/setup debhelper dh-dkms fakeroot
	scripts/packages target/packages "HANDOFF=$(HANDOFF)" "WORKSHOP=$(WORKSHOP)" "ARCHIVE=$(ARCHIVE)" "DIST=$(DIST)"

clean: ## Remove everything that was built
	$(CARGO) clean
