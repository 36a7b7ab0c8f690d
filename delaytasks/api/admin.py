"""Admin of service accounts and tokens: create a token, show its secret once, revoke it."""

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.utils import display_for_value
from django.contrib.admin.views.main import ChangeList
from django.db.models import Count, QuerySet
from django.forms.models import BaseInlineFormSet
from django.http import HttpRequest, HttpResponse
from django.utils.cache import add_never_cache_headers
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, pgettext

from .. import admin_log
from ..admin.forms import ChangesForm
from ..admin.log_entries import TranslatedHistoryAdmin
from ..admin_log import Action
from ..jobs import audit_log
from .access import grants as token_grants
from .access import tokens
from .access.token_forms import AccountForm, RightsFormMixin, TokenForm
from .models import RIGHTS, Grant, ServiceAccount, Token

STATUS_LABELS = {
    "accepted": _("accepted"),
    "revoked": _("revoked"),
    "expired": _("expired"),
    "account inactive": _("account inactive"),
}

RECORDS = ("made", "created_by", "last_used_at", "revoked_at", "revoked_by")


@admin.register(ServiceAccount)
class ServiceAccountAdmin(RightsFormMixin, TranslatedHistoryAdmin):
    form = AccountForm
    list_display = ("name", "active", "tokens", "note", "created_at")
    list_filter = ("active",)
    search_fields = ("name", "note")
    fields = ("name", "active", "note")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ServiceAccount]:
        return super().get_queryset(request).annotate(token_count=Count("tokens"))

    def get_readonly_fields(self, request: HttpRequest, obj: ServiceAccount | None = None) -> tuple[str, ...]:
        """Make the name read-only after creation: events record it."""
        return () if obj is None else ("name",)

    def audited_state(self, obj: ServiceAccount) -> dict[str, Any]:
        prefixes = Token.objects.filter(account=obj).order_by("pk").values_list("prefix", flat=True)
        return {"name": obj.name, "active": obj.active, "note": obj.note, "tokens": list(prefixes)}

    def save_model(self, request: HttpRequest, obj: ServiceAccount, form: Any, change: bool) -> None:
        obj.save(update_fields=form.changed_data if change else None)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        grants = Grant.objects.filter(token__account__in=objs)
        return _without_hidden(super().get_deleted_objects(objs, request), objs, grants, request.user)

    @admin.display(description=_("tokens"), ordering="token_count")
    def tokens(self, account: Any) -> SafeString:
        address = self._url("api_token_changelist")
        return format_html('<a href="{}?account__id__exact={}">{}</a>', address, account.pk, account.token_count)


def _without_hidden(deleted: Any, objs: Any, grants: QuerySet[Grant], user: Any) -> Any:
    """Return what get_deleted_objects() returned, without names of topics that the user may not see."""
    if all(token_grants.sees(user, topic) for topic in set(grants.values_list("topic", flat=True))):
        return deleted
    _names, *rest = deleted
    return [str(each) for each in objs], *rest


class GrantFormSet(BaseInlineFormSet):
    """A formset in which users may add to a token only the rights that they have themselves.

    user   the user who edits; set by GrantInline
    """

    user: Any = None

    def clean(self) -> None:
        super().clean()
        for form in set(self.forms) - set(self.deleted_forms):
            topic = getattr(form, "cleaned_data", {}).get("topic")
            if not topic or not form.has_changed():
                continue
            before = {right for right in RIGHTS if form.initial.get(right) and "topic" not in form.changed_data}
            added = {right for right in RIGHTS if form.cleaned_data.get(right)} - before
            if problem := token_grants.problem(self.user, topic, added):
                form.add_error("topic", problem)


class GrantInline(admin.TabularInline):
    """Grants of a token. The user's permissions on tokens apply to them."""

    model = Grant
    form = ChangesForm
    formset = GrantFormSet
    extra = 1

    def get_queryset(self, request: HttpRequest) -> QuerySet[Grant]:
        """Return the grants whose topics the user may see. The others stay as they are."""
        grants = super().get_queryset(request)
        topics = grants.values_list("topic", flat=True).distinct().order_by("topic")
        return grants.filter(topic__in=[topic for topic in topics if token_grants.sees(request.user, topic)])

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


class TokenChangeList(ChangeList):
    """The list of tokens. Checks once for all rows which topics the user may see."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        topics = {grant.topic for token in self.result_list for grant in token.grants.all()}
        seen = {topic for topic in topics if token_grants.sees(request.user, topic)}
        for token in self.result_list:
            token.seen_topics = seen


@admin.register(Token)
class TokenAdmin(RightsFormMixin, TranslatedHistoryAdmin):
    form = TokenForm
    list_display = ("shown_prefix", "account", "name", "status", "granted", "expiry_date", "last_used_at")
    list_filter = ("revoked", "account")
    list_select_related = ("account",)
    search_fields = ("prefix", "name", "account__name")
    show_facets = admin.ShowFacets.NEVER
    actions = ("revoke",)
    inlines: ClassVar = [GrantInline]

    class Media:
        css = {"all": ["delaytasks/admin.css"]}  # noqa: RUF012  Django defines this attribute

    def get_queryset(self, request: HttpRequest) -> QuerySet[Token]:
        return super().get_queryset(request).prefetch_related("grants")

    def get_fields(self, request: HttpRequest, obj: Token | None = None) -> tuple[str, ...]:
        terms = ("expiry_date", "rate_per_minute", "max_request_bytes", "max_live_jobs")
        if obj is None:
            return ("account", "name", *terms)
        return ("shown_prefix", "account", "name", "status", "revoked", *terms, *RECORDS)

    def get_readonly_fields(self, request: HttpRequest, obj: Token | None = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        fixed = ("shown_prefix", "account", "status", *RECORDS)
        return (*fixed, "revoked") if obj.revoked else fixed

    # djangorestframework-api-key does not translate the names of these two fields.

    @admin.display(description=_("prefix"), ordering="prefix")
    def shown_prefix(self, token: Token) -> str:
        return token.prefix

    @admin.display(description=_("created"), ordering="created")
    def made(self, token: Token) -> str:
        return display_for_value(token.created, "-")

    @admin.display(description=_("state"))
    def status(self, token: Token) -> SafeString:
        status = tokens.status(token)
        css = "running" if status == "accepted" else "paused"
        return format_html('<span class="dt-state dt-{}">{}</span>', css, STATUS_LABELS[status])

    @admin.display(description=_("grants"))
    def granted(self, token: Any) -> str:
        """Return the grants, without the topics that the user may not see."""
        texts = [str(grant) for grant in token.grants.all() if grant.topic in token.seen_topics]
        more = len(token.grants.all()) - len(texts)
        if more:
            texts.append(str(ngettext("%(n)d hidden topic", "%(n)d hidden topics", more) % {"n": more}))
        return pgettext("between the parts of a list", "; ").join(texts)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[TokenChangeList]:
        return TokenChangeList

    def audited_state(self, obj: Token) -> dict[str, Any]:
        return tokens.state(obj)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        grants = Grant.objects.filter(token__in=objs)
        return _without_hidden(super().get_deleted_objects(objs, request), objs, grants, request.user)

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        """Return the message without the topics of grants: everybody who sees the token reads its history."""
        message: Any = super().construct_change_message(request, form, formsets, add)
        for details in (each for entry in message for each in entry.values()):
            if "object" in details:
                details["object"] = "…"
        return message

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:  # only changed fields: otherwise this could undo a concurrent revocation
            obj.save(update_fields=[name for name in form.changed_data if name != "revoked"])
            if "revoked" in form.changed_data:
                self._revoke(request, Token.objects.filter(pk=obj.pk))
            return
        obj.created_by = request.user.get_username()
        obj.secret = Token.objects.assign_key(obj)
        obj.save()

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        """Show the secret in this response. Django would store a message with the secret in a cookie or the session."""
        context = {"title": _("Token created"), "token": obj, "list_url": self._url("api_token_changelist")}
        response = self._page(request, "token_secret.html", context)
        add_never_cache_headers(response)
        return response

    @admin.action(permissions=["change"], description=_("Revoke permanently, with immediate effect"))
    def revoke(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        revoked = self._revoke(request, queryset)
        for token in Token.objects.filter(prefix__in=revoked):
            # Only Django's log: revoke() has written the audit log.
            admin.ModelAdmin.log_change(self, request, token, admin_log.entry_message(Action.REVOKED))
        message = ngettext("%(n)d token revoked", "%(n)d tokens revoked", len(revoked)) % {"n": len(revoked)}
        self.message_user(request, message, messages.SUCCESS if revoked else messages.WARNING)

    def _revoke(self, request: HttpRequest, queryset: QuerySet[Token]) -> list[str]:
        user: Any = request.user
        return tokens.revoke(queryset, user.get_username(), audit_log.source_of(request))
