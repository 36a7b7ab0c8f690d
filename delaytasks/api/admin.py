"""Service accounts and their tokens in the admin: make one, see its secret once, revoke it."""

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.utils import display_for_value
from django.db.models import Count, QuerySet
from django.forms.models import BaseInlineFormSet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, pgettext

from .. import engine, rights
from ..admin.history import ToldHistory
from . import tokens
from .models import Grant, ServiceAccount, Token

STANDING = {
    "accepted": _("accepted"),
    "revoked": _("revoked"),
    "expired": _("expired"),
    "account inactive": _("account inactive"),
}


@admin.register(ServiceAccount)
class ServiceAccountAdmin(ToldHistory):
    list_display = ("name", "active", "tokens", "note", "created_at")
    list_filter = ("active",)
    search_fields = ("name", "note")
    fields = ("name", "active", "note")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ServiceAccount]:
        return super().get_queryset(request).annotate(token_count=Count("tokens"))

    def get_readonly_fields(self, request: HttpRequest, obj: ServiceAccount | None = None) -> tuple[str, ...]:
        """What it did is kept under its name."""
        return () if obj is None else ("name",)

    @admin.display(description=_("tokens"), ordering="token_count")
    def tokens(self, account: Any) -> SafeString:
        address = reverse("admin:delaytasks_api_token_changelist", current_app=self.admin_site.name)
        return format_html('<a href="{}?account__id__exact={}">{}</a>', address, account.pk, account.token_count)


class GrantFormSet(BaseInlineFormSet):
    """Nobody grants what they cannot see. What somebody else granted may stay, and may be taken away.

    user   who is at it; set by GrantInline
    """

    user: Any = None

    def clean(self) -> None:
        super().clean()
        limit = rights.visible_topics(self.user, engine.alias())
        if limit is None:
            return
        for form in set(self.forms) - set(self.deleted_forms):
            topic = getattr(form, "cleaned_data", {}).get("topic")
            if topic and form.has_changed() and topic not in limit:  # a prefix reaches what is hidden, or will be
                form.add_error("topic", _("You do not see every topic: grant those that you see, each by its name."))


class GrantInline(admin.TabularInline):
    """Part of its token: whoever may change the one may change the other."""

    model = Grant
    formset = GrantFormSet
    extra = 1

    def get_formset(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        formset: Any = super().get_formset(request, obj, **kwargs)
        formset.user = request.user
        return formset

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(f"delaytasks_api.{'add' if obj is None else 'change'}_token")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("delaytasks_api.change_token")

    has_delete_permission = has_change_permission

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("delaytasks_api.view_token")


@admin.register(Token)
class TokenAdmin(ToldHistory):
    list_display = ("shown_prefix", "account", "name", "standing", "granted", "expiry_date", "last_used_at")
    list_filter = ("revoked", "account")
    list_select_related = ("account",)
    search_fields = ("prefix", "name", "account__name")
    show_facets = admin.ShowFacets.NEVER
    actions = ("revoke",)
    inlines: ClassVar = [GrantInline]

    class Media:
        css = {"all": ["delaytasks/admin.css"]}  # noqa: RUF012  the name and the form are Django's

    def get_queryset(self, request: HttpRequest) -> QuerySet[Token]:
        return super().get_queryset(request).prefetch_related("grants")

    def get_fields(self, request: HttpRequest, obj: Token | None = None) -> tuple[str, ...]:
        terms = ("expiry_date", "rate_per_minute", "max_request_bytes")
        if obj is None:
            return ("account", "name", *terms)
        return ("shown_prefix", "account", "name", "standing", "revoked", *terms, "made", "last_used_at")

    def get_readonly_fields(self, request: HttpRequest, obj: Token | None = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        fixed = ("shown_prefix", "account", "standing", "made", "last_used_at")
        return (*fixed, "revoked") if obj.revoked else fixed

    # The library's own names of these two fields are in English alone.

    @admin.display(description=_("prefix"), ordering="prefix")
    def shown_prefix(self, token: Token) -> str:
        return token.prefix

    @admin.display(description=_("created"), ordering="created")
    def made(self, token: Token) -> str:
        return display_for_value(token.created, "-")

    @admin.display(description=_("state"))
    def standing(self, token: Token) -> SafeString:
        word = tokens.standing(token)
        css = "running" if word == "accepted" else "paused"
        return format_html('<span class="dt-state dt-{}">{}</span>', css, STANDING[word])

    @admin.display(description=_("grants"))
    def granted(self, token: Token) -> str:
        return pgettext("between the parts of a list", "; ").join(str(grant) for grant in token.grants.all())

    def save_model(self, request: HttpRequest, obj: Token, form: Any, change: bool) -> None:
        if change:  # and nothing else: what was revoked in this very moment stays so
            obj.save(update_fields=form.changed_data)
            return
        secret = Token.objects.assign_key(obj)
        obj.save()
        said = _("The secret of token {} is shown this once and stored nowhere: {}")
        messages.warning(request, format_html(str(said), obj.prefix, format_html("<code>{}</code>", secret)))

    @admin.action(permissions=["change"], description=_("Revoke, at once and for good"))
    def revoke(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        revoked = tokens.revoke(queryset)
        for token in Token.objects.filter(prefix__in=revoked):
            self.log_change(request, token, "Revoked.")
        done = ngettext("%(n)d token revoked", "%(n)d tokens revoked", len(revoked)) % {"n": len(revoked)}
        self.message_user(request, done, messages.SUCCESS if revoked else messages.WARNING)
