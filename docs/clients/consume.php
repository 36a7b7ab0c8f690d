<?php
// Add and handle jobs with PHP 8.1, without any package.
//
//   php consume.php add order:1042 3    adds a job that is due in one second and takes three seconds
//   php consume.php                     handles due jobs until SIGTERM or Ctrl-C
//
// Set DELAYTASKS_URL (https://tasks.example.com/api/queue/), DELAYTASKS_TOKEN and TOPIC in the environment.
//
// PHP has no threads, so a job is not touched while it is handled: it has to take less time than its TTR.

declare(strict_types=1);

const WAIT_SECONDS = 5; // of one pop; a signal does not interrupt it, so a stop may take as long

// Turn warnings into exceptions.
set_error_handler(function (int $level, string $message): bool {
    return error_reporting() & $level ? throw new ErrorException($message) : false;
});

/** The server refused the command. */
class Refused extends RuntimeException {}

/** The server is unavailable; try again after $seconds. */
class Unavailable extends RuntimeException
{
    public function __construct(string $message, public readonly float $seconds)
    {
        parent::__construct($message);
    }
}

function setting(string $name): string
{
    return getenv($name) ?: throw new RuntimeException("$name is not set.");
}

/** Do the work. It may run twice, so make it idempotent. Errors are stored with the job. */
function handle(string $id, mixed $body): void
{
    print_line("began with $id");
    for ($until = microtime(true) + $body['seconds']; ($seconds = $until - microtime(true)) > 0;) {
        usleep((int) ($seconds * 1e6)); // a signal interrupts it
    }
    print_line("did the work of $id");
}

function print_line(string $line): void
{
    echo $line, "\n";
}

/** Send a command and return the answer. Throws Refused or Unavailable; RuntimeException if a retry cannot help. */
function send(array $command): array
{
    $request = [
        'method' => 'POST',
        'header' => ['Authorization: Bearer ' . setting('DELAYTASKS_TOKEN'), 'Content-Type: application/json'],
        'content' => json_encode($command, JSON_THROW_ON_ERROR | JSON_INVALID_UTF8_SUBSTITUTE),
        'timeout' => ($command['wait'] ?? 0) + 10,
        'ignore_errors' => true, // the body has the reason
        'follow_location' => 0, // send the token only to this URL
    ];
    $stream = @fopen(setting('DELAYTASKS_URL'), 'r', false, stream_context_create(['http' => $request]));
    if ($stream === false) {
        throw new Unavailable(error_get_last()['message'] ?? 'no connection', 2);
    }
    $head = implode("\n", stream_get_meta_data($stream)['wrapper_data']);
    $text = (string) stream_get_contents($stream);
    fclose($stream);
    $status = (int) (explode(' ', $head)[1] ?? 0);
    $answer = json_decode($text, true);
    $reason = $answer['error'] ?? "HTTP $status";
    if ($status === 429 || $status >= 500) {
        throw new Unavailable($reason, preg_match('/^Retry-After: *(\d+)/mi', $head, $found) ? (float) $found[1] : 2);
    }
    if (in_array($status, [401, 403], true) || !isset($answer['success'])) {
        throw new RuntimeException("$status: $reason");
    }
    return $answer['success'] ? $answer : throw new Refused($reason);
}

/** Do the work of a job and return the command that ends its attempt. */
function work(array $job): array
{
    try {
        handle($job['id'], $job['value']);
        return ['command' => 'finish'];
    } catch (Throwable $error) {
        $message = preg_replace('/[\x00-\x08\x0b-\x1f\x7f]/', ' ', substr($error->getMessage(), 0, 4000)); // only printable
        return ['command' => 'release', 'error' => $message ?: $error::class]; // after the topic's backoff
    }
}

/** Send the command that ends an attempt; retry while the server is unavailable, until the TTR is over. */
function end_attempt(array $command, array $job, string $topic, float $until): void
{
    $job_fields = ['id' => $job['id'], 'topic' => $topic, 'job' => $job['job'], 'attempt' => $job['attempt']]; // the fencing token
    while (true) {
        try {
            send($command + $job_fields);
            print_line("{$command['command']}: {$job['id']}, attempt {$job['attempt']}");
            return;
        } catch (Refused $refused) {
            print_line("too late: {$refused->getMessage()}"); // another consumer has it or will get it
            return;
        } catch (Unavailable $error) {
            if (microtime(true) + $error->seconds > $until) {
                throw $error;
            }
            usleep((int) ($error->seconds * 1e6));
        }
    }
}

function consume(string $topic): void
{
    $stopping = false;
    if (function_exists('pcntl_async_signals')) {
        pcntl_async_signals(true);
        foreach ([SIGTERM, SIGINT] as $signal) {
            pcntl_signal($signal, function () use (&$stopping): void { $stopping = true; });
        }
    }
    print_line("waiting for $topic");
    while (!$stopping) {
        try {
            $job = send(['command' => 'pop', 'topic' => $topic, 'wait' => WAIT_SECONDS]);
            if ($job['id'] === '') {
                continue; // the queue is empty
            }
            $until = microtime(true) + $job['TTR'];
            end_attempt($stopping ? ['command' => 'release'] : work($job), $job, $topic, $until);
        } catch (Unavailable $error) {
            print_line("unavailable: {$error->getMessage()}");
            $until = microtime(true) + $error->seconds * (1 + lcg_value() / 5);
            while (!$stopping && ($seconds = $until - microtime(true)) > 0) {
                usleep((int) (min($seconds, 1) * 1e6)); // at most 1 s: a signal just before it does not interrupt it
            }
        }
    }
    print_line('stopped');
}

$topic = setting('TOPIC');
if (($argv[1] ?? '') === 'add') {
    $id = $argv[2] ?? throw new RuntimeException('php consume.php add ID [SECONDS]');
    $body = ['seconds' => (float) ($argv[3] ?? 0)];
    send(['command' => 'add', 'topic' => $topic, 'id' => $id, 'delay' => 1, 'TTR' => 60, 'body' => $body]);
    print_line("added $id, due in 1 s");
} else {
    consume($topic);
}
