from django.contrib import admin
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop
from rest_framework_api_key.models import APIKey

from .models import Customer, Order, OrderLine, Payment, Product, Refund

admin.site.site_header = _("delaytasks: the shop")
admin.site.site_title = "delaytasks"
admin.site.unregister(APIKey)  # opens nothing here: the tokens of delaytasks.api do
# What Django's log calls the fields that staff change; it looks these up when it is read.
LABELS = (gettext_noop("Name"), gettext_noop("Email"), gettext_noop("Price"), gettext_noop("Stock"))
# What Django's own catalogue has no Chinese for.
OF_DJANGO = (
    gettext_noop("Model name"), gettext_noop("Add link"), gettext_noop("Change or view list link"),
)  # fmt: skip


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    list_display = ("name", "email")
    search_fields = ("name", "email")


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ("name", "price", "stock")
    search_fields = ("name",)


class ReadOnly:
    """Rows that the shop's own rules move: to look at, not to edit."""

    def has_add_permission(self, request, obj=None):
        return False

    def has_change_permission(self, request, obj=None):
        return False

    def has_delete_permission(self, request, obj=None):
        return False


class OrderLineInline(ReadOnly, admin.TabularInline):
    model = OrderLine
    extra = 0


@admin.register(Order)
class OrderAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ("__str__", "customer", "state", "total", "created_at", "pay_by", "closed_at")
    list_filter = ("state",)
    list_select_related = ("customer",)
    search_fields = ("=id", "=external_id", "customer__name")
    ordering = ("-id",)
    inlines = (OrderLineInline,)


@admin.register(Payment)
class PaymentAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ("__str__", "amount", "paid_at")
    list_select_related = ("order",)
    ordering = ("-id",)


@admin.register(Refund)
class RefundAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ("__str__", "order", "state", "amount", "reference", "created_at", "ask_until", "ended_at")
    list_filter = ("state",)
    list_select_related = ("order",)
    search_fields = ("=id", "=reference")
    ordering = ("-id",)
