// Tells what the chosen topic does, how long its jobs may run and whether it requires a reason.
'use strict';
document.addEventListener('DOMContentLoaded', () => {
    const facts = JSON.parse(document.getElementById('dt-topic-facts').textContent);
    const topic = document.getElementById('id_topic');
    const note = document.createElement('div');
    note.className = 'help dt-topic-note';
    note.setAttribute('role', 'status');
    topic.closest('.form-row').append(note);
    const show = () => {
        const {text = '', ttr = '', reason = ''} = facts[topic.value] ?? {};
        note.textContent = [text, reason].filter(Boolean).join(' ');
        document.getElementById('id_ttr').placeholder = ttr;
        document.querySelector('label[for="id_reason"]').classList.toggle('required', Boolean(reason));
    };
    topic.addEventListener('change', show);
    show();
});
