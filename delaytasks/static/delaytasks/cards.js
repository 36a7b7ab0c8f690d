// Adds the column name to each cell of a list, for narrow screens where rows are cards: see admin.css.
'use strict';
document.addEventListener('DOMContentLoaded', () => {
    const table = document.getElementById('result_list');
    const heads = [...(table?.tHead?.rows[0].cells ?? [])].map((head) => head.querySelector('.text')?.textContent.trim());
    for (const row of table?.tBodies[0]?.rows ?? []) {
        [...row.cells].forEach((cell, index) => {
            const text = cell.textContent.trim();
            if (['', '-', '–'].includes(text) && !cell.querySelector('input')) {
                cell.dataset.empty = ''; // cards omit empty cells
            } else if (cell.tagName === 'TD' && heads[index] && !cell.querySelector('.dt-state')) {
                cell.dataset.label = heads[index];
            }
        });
    }
});
