from conformance.base.threads import one_thread

with one_thread():  # pytest-xdist's workers fill the cores
    import numpy  # noqa: F401


def pytest_addoption(pluginmanager):
    """Makes `pytest --ep cpu` work from the checkout, installed or not."""
    pluginmanager.import_plugin("conformance.pytest_plugin")
