// Shows only the fields of the chosen kind of target on the page of a topic.
'use strict';
document.addEventListener('DOMContentLoaded', () => {
    const kind = document.getElementById('id_target_kind');
    if (!kind) return;
    const kinds = [...kind.options].map((option) => option.value).filter(Boolean);
    const show = () => {
        for (const row of kind.closest('fieldset').querySelectorAll('.form-row')) {
            const of = kinds.find((name) => row.matches(`[class*="field-${name}_"]`));
            const isCommon = row.matches('[class*="field-target_"]:not(.field-target_kind)');
            row.hidden = of ? of !== kind.value : isCommon && !kind.value;
        }
    };
    kind.addEventListener('change', show);
    show();
});
