<?php
// Adds and handles jobs with PHP 8.1 and nothing else.
//
//   php consume.php add order:1042 3    promises a job that is due in one second, and is three seconds of work
//   php consume.php                     handles what is due, until SIGTERM or Ctrl-C
//
// DELAYTASKS_URL=https://tasks.example.com/api/queue/, DELAYTASKS_TOKEN and TOPIC are in the environment.
//
// PHP does one thing at a time, so nobody touches a job while it is handled: it has to take less time than its TTR.

declare(strict_types=1);

const WAIT_SECONDS = 5; // of one question, which a signal does not interrupt: so long a stop may take

// A warning is a failure, too.
set_error_handler(function (int $level, string $message): bool {
    return error_reporting() & $level ? throw new ErrorException($message) : false;
});

/** The server understood, and said no. */
class Refused extends RuntimeException {}

/** No answer for now; try again after $seconds. */
class Later extends RuntimeException
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

/** The work. It may be done twice, so doing it twice must do no harm. What it throws is kept with the job. */
function handle(string $id, mixed $body): void
{
    say("began with $id");
    for ($until = microtime(true) + $body['seconds']; ($rest = $until - microtime(true)) > 0;) {
        usleep((int) ($rest * 1e6)); // a signal cuts it short
    }
    say("did the work of $id");
}

function say(string $line): void
{
    echo $line, "\n";
}

/** The answer to a command. Throws Refused or Later; RuntimeException when trying again is no use. */
function ask(array $command): array
{
    $request = [
        'method' => 'POST',
        'header' => ['Authorization: Bearer ' . setting('DELAYTASKS_TOKEN'), 'Content-Type: application/json'],
        'content' => json_encode($command, JSON_THROW_ON_ERROR | JSON_INVALID_UTF8_SUBSTITUTE),
        'timeout' => ($command['wait'] ?? 0) + 10,
        'ignore_errors' => true, // the reason is in the body
        'follow_location' => 0, // the token goes to this address alone
    ];
    $stream = @fopen(setting('DELAYTASKS_URL'), 'r', false, stream_context_create(['http' => $request]));
    if ($stream === false) {
        throw new Later(error_get_last()['message'] ?? 'no connection', 2);
    }
    $head = implode("\n", stream_get_meta_data($stream)['wrapper_data']);
    $text = (string) stream_get_contents($stream);
    fclose($stream);
    $status = (int) (explode(' ', $head)[1] ?? 0);
    $answer = json_decode($text, true);
    $reason = $answer['error'] ?? "HTTP $status";
    if ($status === 429 || $status >= 500) {
        throw new Later($reason, preg_match('/^Retry-After: *(\d+)/mi', $head, $found) ? (float) $found[1] : 2);
    }
    if (in_array($status, [401, 403], true) || !isset($answer['success'])) {
        throw new RuntimeException("$status: $reason");
    }
    return $answer['success'] ? $answer : throw new Refused($reason);
}

/** Tells how a job ended, again while the server is away, until its TTR is over. */
function tell(array $command, float $until): void
{
    while (true) {
        try {
            ask($command);
            return;
        } catch (Later $later) {
            if (microtime(true) + $later->seconds > $until) {
                throw $later;
            }
            usleep((int) ($later->seconds * 1e6));
        }
    }
}

function work(array $job, string $topic, float $until): void
{
    $about = ['id' => $job['id'], 'topic' => $topic, 'job' => $job['job'], 'attempt' => $job['attempt']]; // the fence
    try {
        handle($job['id'], $job['value']);
        $end = ['command' => 'finish'];
    } catch (Throwable $error) {
        $said = preg_replace('/[\x00-\x08\x0b-\x1f\x7f]/', ' ', substr($error->getMessage(), 0, 4000)); // printable
        $end = ['command' => 'release', 'error' => $said ?: $error::class]; // after the topic's backoff
    }
    try {
        tell($end + $about, $until);
        say("{$end['command']}: {$job['id']}, attempt {$job['attempt']}");
    } catch (Refused $refused) {
        say("too late: {$refused->getMessage()}"); // somebody else has it, or will have it
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
    say("waiting for $topic");
    while (!$stopping) {
        try {
            $job = ask(['command' => 'pop', 'topic' => $topic, 'wait' => WAIT_SECONDS]);
            if ($job['id'] === '') {
                continue; // an empty queue is a success
            }
            $until = microtime(true) + $job['TTR'];
            if ($stopping) {
                tell(['command' => 'release', 'id' => $job['id'], 'attempt' => $job['attempt']], $until);
            } else {
                work($job, $topic, $until);
            }
        } catch (Later $later) {
            say("resting: {$later->getMessage()}");
            $until = microtime(true) + $later->seconds * (1 + lcg_value() / 5);
            while (!$stopping && ($rest = $until - microtime(true)) > 0) {
                usleep((int) (min($rest, 1) * 1e6)); // a signal that came just before it does not cut it short
            }
        }
    }
    say('stopped');
}

$topic = setting('TOPIC');
if (($argv[1] ?? '') === 'add') {
    $id = $argv[2] ?? throw new RuntimeException('php consume.php add ID [SECONDS]');
    $body = ['seconds' => (float) ($argv[3] ?? 0)];
    ask(['command' => 'add', 'topic' => $topic, 'id' => $id, 'delay' => 1, 'TTR' => 60, 'body' => $body]);
    say("added $id, due in 1 s");
} else {
    consume($topic);
}
