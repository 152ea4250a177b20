def pytest_addoption(pluginmanager):
    """Makes `pytest --ep cpu` work from the checkout, installed or not."""
    pluginmanager.import_plugin("conformance.pytest_plugin")
