"""Service levels in the admin of the models that they are declared on."""
