import datetime

import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0003_plain_labels"),
    ]

    operations = [
        migrations.CreateModel(
            name="Device",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True, verbose_name="name")),
                (
                    "address",
                    models.CharField(
                        help_text="the URL to which the command is posted",
                        max_length=200,
                        validators=[django.core.validators.URLValidator(schemes=["http", "https"])],
                        verbose_name="address",
                    ),
                ),
                ("command", models.CharField(max_length=100, verbose_name="command")),
                (
                    "command_at",
                    models.DateTimeField(
                        blank=True, help_text="when the device is told", null=True, verbose_name="set time"
                    ),
                ),
                ("told_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="told at")),
            ],
            options={
                "verbose_name": "device",
                "verbose_name_plural": "devices",
            },
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("lesson", "Your lesson starts soon"),
                            ("review", "How did you like your order?"),
                            ("absence", "We have not seen you for a while"),
                            ("cart", "Your cart is waiting for you"),
                            ("offer", "You have not offered anything for a while"),
                        ],
                        max_length=8,
                        verbose_name="message",
                    ),
                ),
                (
                    "to",
                    models.CharField(help_text="an email address or a phone number", max_length=254, verbose_name="to"),
                ),
                (
                    "about",
                    models.CharField(help_text="the key of the job that sent it", max_length=64, verbose_name="about"),
                ),
                ("sent_at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="sent at")),
            ],
            options={
                "verbose_name": "message",
                "verbose_name_plural": "messages",
            },
        ),
        migrations.CreateModel(
            name="Seller",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True, verbose_name="name")),
                ("email", models.EmailField(max_length=254, verbose_name="email")),
                ("offered_at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="last offer at")),
                (
                    "remind_after",
                    models.DurationField(
                        default=datetime.timedelta(days=30),
                        help_text="without an offer; days, or hours:minutes:seconds",
                        verbose_name="remind after",
                    ),
                ),
            ],
            options={
                "verbose_name": "seller",
                "verbose_name_plural": "sellers",
            },
        ),
        migrations.AddField(
            model_name="customer",
            name="card",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="open orders are paid with it automatically",
                max_length=32,
                verbose_name="stored card",
            ),
        ),
        migrations.AddField(
            model_name="customer",
            name="phone",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="for text messages",
                max_length=32,
                verbose_name="phone",
            ),
        ),
        migrations.AddField(
            model_name="customer",
            name="seen_at",
            field=models.DateTimeField(
                blank=True, help_text="of a member; empty: not a member", null=True, verbose_name="last seen at"
            ),
        ),
        migrations.AddField(
            model_name="order",
            name="delivered_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="delivered at"),
        ),
        migrations.CreateModel(
            name="Cart",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("quantity", models.PositiveIntegerField(default=1, verbose_name="quantity")),
                ("changed_at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="changed at")),
                (
                    "customer",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="cart",
                        to="shop.customer",
                        verbose_name="customer",
                    ),
                ),
                (
                    "product",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="carts",
                        to="shop.product",
                        verbose_name="product",
                    ),
                ),
            ],
            options={
                "verbose_name": "cart",
                "verbose_name_plural": "carts",
            },
        ),
        migrations.CreateModel(
            name="Lesson",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("title", models.CharField(max_length=100, verbose_name="title")),
                (
                    "starts_at",
                    models.DateTimeField(help_text="the class is reminded shortly before", verbose_name="starts at"),
                ),
                ("cancelled", models.BooleanField(default=False, verbose_name="cancelled")),
                (
                    "students",
                    models.ManyToManyField(
                        blank=True, related_name="lessons", to="shop.customer", verbose_name="students"
                    ),
                ),
            ],
            options={
                "verbose_name": "lesson",
                "verbose_name_plural": "lessons",
            },
        ),
        migrations.AddField(
            model_name="product",
            name="seller",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="products",
                to="shop.seller",
                verbose_name="seller",
            ),
        ),
    ]
