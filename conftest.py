"""Makes `pytest --ep cpu` work from the checkout, installed or not."""

pytest_plugins = ["conformance.pytest_plugin"]
