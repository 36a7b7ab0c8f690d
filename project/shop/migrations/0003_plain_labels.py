from django.db import migrations, models


class Migration(migrations.Migration):
    """Change labels and help texts only; the tables stay the same."""

    dependencies = [
        ("shop", "0002_names_for_people"),
    ]

    operations = [
        migrations.AlterField(
            model_name="order",
            name="pay_by",
            field=models.DateTimeField(
                help_text="the order is closed at this time unless it is paid", verbose_name="pay by"
            ),
        ),
        migrations.AlterField(
            model_name="product",
            name="stock",
            field=models.PositiveIntegerField(
                help_text="units left to order, without those in open orders", verbose_name="stock"
            ),
        ),
        migrations.AlterField(
            model_name="refund",
            name="ask_until",
            field=models.DateTimeField(
                help_text="after this time, staff review the refund", verbose_name="check until"
            ),
        ),
        migrations.AlterField(
            model_name="refund",
            name="reference",
            field=models.CharField(
                help_text="identifies the refund at the payment gateway",
                max_length=64,
                unique=True,
                verbose_name="reference",
            ),
        ),
        migrations.AlterField(
            model_name="refund",
            name="state",
            field=models.CharField(
                choices=[
                    ("pending", "Pending"),
                    ("settled", "Settled"),
                    ("failed", "Failed"),
                    ("needs a person", "Needs review"),
                ],
                default="pending",
                max_length=14,
                verbose_name="state",
            ),
        ),
    ]
