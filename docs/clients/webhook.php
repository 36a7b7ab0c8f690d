<?php
// Receive webhooks and check their signatures: WEBHOOK_SECRET=whsec_... php -S 127.0.0.1:8080 webhook.php
// The signature is that of Standard Webhooks. Store the id where your effects are: a message may come twice.

const TOLERANCE_SECONDS = 300;

function is_signed(string $secret, string $body): bool
{
    $key = base64_decode(preg_replace('/^whsec_/', '', $secret));
    if ($key === '') { // WEBHOOK_SECRET is not set: anybody can sign with an empty key
        return false;
    }
    $id = $_SERVER['HTTP_WEBHOOK_ID'] ?? '';
    $timestamp = $_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? '';
    if (abs(time() - (int) $timestamp) > TOLERANCE_SECONDS) {
        return false;
    }
    $expected = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$timestamp.$body", $key, true));
    foreach (explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? '') as $signature) {
        if (hash_equals($expected, $signature)) {
            return true;
        }
    }
    return false;
}

$body = file_get_contents('php://input'); // the bytes as they came: parsed and written again they may differ
if (!is_signed(getenv('WEBHOOK_SECRET'), $body)) {
    http_response_code(401);
    exit;
}
error_log("received {$_SERVER['HTTP_WEBHOOK_ID']} $body");
http_response_code(204);
