// Gives each cell of a list the name of its column, for the width at which rows are cards: see admin.css.
'use strict';
document.addEventListener('DOMContentLoaded', () => {
    const table = document.getElementById('result_list');
    const heads = [...(table?.tHead?.rows[0].cells ?? [])].map((head) => head.querySelector('.text')?.textContent.trim());
    for (const row of table?.tBodies[0]?.rows ?? []) {
        [...row.cells].forEach((cell, place) => {
            const text = cell.textContent.trim();
            if (['', '-', '–'].includes(text) && !cell.querySelector('input')) {
                cell.dataset.empty = ''; // nothing to say: a card leaves it out
            } else if (cell.tagName === 'TD' && heads[place] && !cell.querySelector('.dt-state')) {
                cell.dataset.label = heads[place];
            }
        });
    }
});
