from datetime import timedelta

from django.contrib import admin
from django.db.models import F, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop, ngettext
from rest_framework_api_key.models import APIKey

from delaytasks import formatting
from delaytasks.admin import SlaMixin, TimeoutsMixin

from .models import (
    Cart,
    Customer,
    Device,
    Lesson,
    Message,
    Order,
    OrderLine,
    Payment,
    Product,
    Refund,
    Seller,
    Ticket,
)

admin.site.site_header = _("delaytasks: the shop")
admin.site.site_title = "delaytasks"
admin.site.unregister(APIKey)  # unused: access is by the tokens of delaytasks.api
# Field names in Django's admin log, which translates them when it is displayed.
LOGGED_FIELDS = (
    gettext_noop("Name"), gettext_noop("Email"), gettext_noop("Price"), gettext_noop("Stock"), gettext_noop("Phone"),
    gettext_noop("Stored card"), gettext_noop("Last seen at"), gettext_noop("Seller"), gettext_noop("Title"),
    gettext_noop("Starts at"), gettext_noop("Cancelled"), gettext_noop("Students"), gettext_noop("Customer"),
    gettext_noop("Product"), gettext_noop("Quantity"), gettext_noop("Changed at"), gettext_noop("Last offer at"),
    gettext_noop("Remind after"), gettext_noop("Address"), gettext_noop("Command"), gettext_noop("Set time"),
)  # fmt: skip
# Texts of Django that have no translation in Django's own Chinese catalogue.
DJANGO_TEXTS = (
    gettext_noop("Model name"), gettext_noop("Add link"), gettext_noop("Change or view list link"),
)  # fmt: skip


@admin.register(Customer)
class CustomerAdmin(TimeoutsMixin, admin.ModelAdmin):
    list_display = ("name", "email", "seen_at")
    search_fields = ("name", "email")


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ("name", "price", "stock")
    search_fields = ("name",)


class ReadOnly:
    """Mixin that makes a model admin read-only, because only the shop's own code changes these rows."""

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
class OrderAdmin(TimeoutsMixin, ReadOnly, admin.ModelAdmin):
    list_display = ("__str__", "customer", "state", "total", "created_at", "pay_by", "closed_at", "delivered_at")
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
class RefundAdmin(TimeoutsMixin, ReadOnly, admin.ModelAdmin):
    list_display = ("__str__", "order", "state", "amount", "reference", "created_at", "ask_until", "ended_at")
    list_filter = ("state",)
    list_select_related = ("order",)
    search_fields = ("=id", "=reference")
    ordering = ("-id",)


@admin.action(description=_("Postpone the selected lessons by one hour"), permissions=["change"])
def postpone(model_admin: admin.ModelAdmin, request: HttpRequest, lessons: QuerySet[Lesson]) -> None:
    """Postpone lessons in one statement. It sends no signals: triggers or the reconciliation move the reminders."""
    count = lessons.update(starts_at=F("starts_at") + timedelta(hours=1))
    text = ngettext("%(count)d lesson was postponed.", "%(count)d lessons were postponed.", count)
    model_admin.message_user(request, text % {"count": count})


@admin.register(Lesson)
class LessonAdmin(TimeoutsMixin, admin.ModelAdmin):
    list_display = ("title", "starts_at", "cancelled")
    search_fields = ("title",)
    ordering = ("starts_at",)
    filter_horizontal = ("students",)
    actions = (postpone,)


@admin.register(Cart)
class CartAdmin(TimeoutsMixin, admin.ModelAdmin):
    list_display = ("customer", "product", "quantity", "changed_at")
    list_select_related = ("customer", "product")
    search_fields = ("customer__name",)


@admin.register(Seller)
class SellerAdmin(TimeoutsMixin, admin.ModelAdmin):
    list_display = ("name", "email", "offered_at", "patience")
    search_fields = ("name", "email")

    @admin.display(description=_("remind after"), ordering="remind_after")
    def patience(self, seller: Seller) -> str:
        return formatting.duration(int(seller.remind_after.total_seconds() * 1000))


@admin.register(Device)
class DeviceAdmin(TimeoutsMixin, admin.ModelAdmin):
    list_display = ("name", "address", "command", "command_at", "told_at")
    search_fields = ("name",)
    readonly_fields = ("told_at",)


@admin.register(Message)
class MessageAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ("kind", "to", "about", "sent_at")
    list_filter = ("kind",)
    search_fields = ("to", "=about")
    ordering = ("-id",)


@admin.register(Ticket)
class TicketAdmin(SlaMixin, TimeoutsMixin, admin.ModelAdmin):
    list_display = ("__str__", "customer", "title", "state", "sla_status", "created_at", "escalated_at")
    list_filter = ("state",)
    list_select_related = ("customer",)
    search_fields = ("=id", "title", "customer__name")
    readonly_fields = ("created_at", "reminded_at", "overdue_at", "escalated_at")
    ordering = ("-id",)

    def has_delete_permission(self, request, obj=None):
        return False  # its service level is kept for reports
