<?php
// One job from its creation to its end over REST. The client is generated from the OpenAPI document.
//
//   php rest.php order:1042
//
// Set DELAYTASKS_URL (https://tasks.example.com/api/queue/), DELAYTASKS_TOKEN and TOPIC in the environment.

declare(strict_types=1);

use Delaytasks\Api\ConsumersApi;
use Delaytasks\Api\JobsApi;
use Delaytasks\ApiException;
use Delaytasks\Configuration;
use Delaytasks\Model\Event;
use Delaytasks\Model\Held;
use Delaytasks\Model\LiveProblem;
use Delaytasks\Model\MadeJob;
use Delaytasks\Model\NewJob;
use Delaytasks\Model\Reserve;

require __DIR__ . '/vendor/autoload.php';

function setting(string $name): string
{
    return getenv($name) ?: throw new RuntimeException("$name is not set.");
}

$topic = setting('TOPIC');
$key = $argv[1] ?? throw new RuntimeException('php rest.php KEY');
$site = preg_replace('~^(\w+://[^/]+).*~', '$1', setting('DELAYTASKS_URL'));
$config = (new Configuration())->setHost($site)->setAccessToken(setting('DELAYTASKS_TOKEN'));
$http = new GuzzleHttp\Client(['timeout' => 40]);
$jobs = new JobsApi($http, $config);
$consumers = new ConsumersApi($http, $config);

$newJob = (new NewJob())->setTopic($topic)->setKey($key)->setDelaySeconds(1)->setBody(['order' => $key]);
$made = $jobs->createJobs($newJob);
$made instanceof MadeJob || throw new RuntimeException('This is the answer to many jobs.');
echo "{$made->getResult()->value} {$made->getKey()} as job {$made->getId()}\n";

// By default a second job with a live key is refused, with status 409.
try {
    $jobs->createJobs($newJob);
} catch (ApiException $error) {
    $problem = $error->getResponseObject();
    if ($problem instanceof LiveProblem) {
        echo "refused: $key is live as job {$problem->getJobId()}\n";
    }
}

$reserved = $consumers->reserveJobs($topic, (new Reserve())->setWaitSeconds(30));
foreach ($reserved->getJobs() as $job) {
    echo "reserved {$job->getKey()}, attempt {$job->getAttempt()}\n";
    $ended = $consumers->finishJob($job->getId(), (new Held())->setAttempt($job->getAttempt()));
    $events = $jobs->readJob($job->getId())->getEvents();
    $outcomes = array_map(fn (Event $event): string => $event->getOutcome()->value, $events);
    echo "{$ended->getState()} {$job->getKey()}: ", implode(', ', $outcomes), "\n";
}
