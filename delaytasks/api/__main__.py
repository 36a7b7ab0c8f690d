"""Write the OpenAPI document: DJANGO_SETTINGS_MODULE=... python -m delaytasks.api > docs/openapi.yaml"""

import sys

import django


def main() -> None:
    django.setup()
    from .schema.document import as_yaml  # after django.setup(): the views import models

    sys.stdout.write(as_yaml())


if __name__ == "__main__":
    main()
