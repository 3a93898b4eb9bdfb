# Every target installs what it needs. Works without a terminal; ARGS goes to the tool that a target runs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help test test-integrations check format demo clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

test: ## the project's tests (about ten minutes); ARGS="-k name"
	scripts/bootstrap.sh test,pyfuse3,bench,peers
	scripts/test.sh $(ARGS)

test-integrations: ## the tests with PyTorch, Hugging Face and other big users, and the exhaustive ones
	scripts/bootstrap.sh test,pyfuse3,bench,peers,integrations
	scripts/test_integrations.sh $(ARGS)

check: ## lint, format, types, layers; all of them, also when one fails
	scripts/bootstrap.sh test,pyfuse3,bench
	@status=0; for tool in "ruff check ." "ruff format --check ." mypy lint-imports; do \
		echo ".venv/bin/$$tool"; .venv/bin/$$tool || status=1; \
	done; exit $$status

format: ## let ruff rewrite what it can
	scripts/bootstrap.sh test,pyfuse3,bench
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

demo: ## real files in a local S3 server, cached against uncached; writes report.html and report.png
	scripts/bootstrap.sh bench,pyfuse3
	.venv/bin/python -P -m tiercache.bench.demo $(ARGS)

clean: ## what the other targets made
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage \
		report.html report.png report.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
