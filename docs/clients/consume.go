// Add and handle jobs with Go 1.19, without any module.
//
//	go build consume.go
//	./consume add order:1042 3    adds a job that is due in one second and takes three seconds
//	./consume                     handles due jobs until SIGTERM or Ctrl-C
//
// Set DELAYTASKS_URL (https://tasks.example.com/api/queue/), DELAYTASKS_TOKEN and TOPIC in the environment.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
)

const waitSeconds = 30.0 // of one pop

// Refused: the server refused the command.
type Refused struct{ reason string }

func (r Refused) Error() string { return r.reason }

// Unavailable: the server is unavailable; try again after the pause.
type Unavailable struct {
	reason string
	pause  time.Duration
}

func (u Unavailable) Error() string { return u.reason }

type fields map[string]any

// Job is the answer to a pop; its id is empty if the queue is empty.
type Job struct {
	ID      string          `json:"id"`
	Value   json.RawMessage `json:"value"`
	Job     int64           `json:"job"`
	Attempt int             `json:"attempt"`
	TTR     float64         `json:"TTR"`
}

var url, token, topic = setting("DELAYTASKS_URL"), setting("DELAYTASKS_TOKEN"), setting("TOPIC")

// Send the token only to this URL.
var client = http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func setting(name string) string {
	value := os.Getenv(name)
	if value == "" {
		fail(errors.New(name + " is not set."))
	}
	return value
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// handle does the work. It may run twice, so make it idempotent. Errors are stored with the job. lost is done when the
// lease is lost: another consumer may have the job.
func handle(lost context.Context, job Job) error {
	fmt.Printf("began with %s, attempt %d\n", job.ID, job.Attempt)
	var body struct{ Seconds *float64 }
	if err := json.Unmarshal(job.Value, &body); err != nil {
		return err
	}
	if body.Seconds == nil || *body.Seconds < 0 {
		return errors.New("the body has no seconds")
	}
	if err := sleep(lost, seconds(*body.Seconds)); err != nil {
		return err
	}
	fmt.Printf("did the work of %s\n", job.ID)
	return nil
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }

func sleep(ctx context.Context, pause time.Duration) error {
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send sends a command and decodes the answer. It returns Refused or Unavailable; any other error if a retry cannot
// help.
func send(ctx context.Context, command fields, answer any) error {
	body, err := json.Marshal(command)
	if err != nil {
		return err
	}
	wait, _ := command["wait"].(float64)
	ctx, cancel := context.WithTimeout(ctx, seconds(wait+10))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "POST", url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return Unavailable{err.Error(), 2 * time.Second}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return Unavailable{err.Error(), 2 * time.Second}
	}
	return read(response, text, answer)
}

func read(response *http.Response, text []byte, answer any) error {
	var envelope struct {
		Success *bool
		Error   string
	}
	_ = json.Unmarshal(text, &envelope) // not the queue but a proxy may have answered
	status, reason := response.StatusCode, envelope.Error
	if reason == "" {
		reason = response.Status
	}
	switch {
	case status == 429 || status >= 500:
		pause, err := strconv.Atoi(response.Header.Get("Retry-After"))
		if err != nil || pause == 0 {
			pause = 2
		}
		return Unavailable{reason, time.Duration(pause) * time.Second}
	case status == 401 || status == 403 || envelope.Success == nil:
		return fmt.Errorf("%d: %s", status, reason)
	case !*envelope.Success:
		return Refused{reason}
	case answer == nil:
		return nil
	}
	return json.Unmarshal(text, answer)
}

// report reports the outcome of a job; it retries while the server is unavailable, until the lease is lost.
func report(lost context.Context, command fields) error {
	for {
		err := send(context.Background(), command, nil)
		var unavailable Unavailable
		if !errors.As(err, &unavailable) || sleep(lost, unavailable.pause) != nil {
			return err
		}
	}
}

// renewLease touches a job at a third of its TTR until done, or until the lease is lost.
func renewLease(done context.Context, job Job, markLost func()) {
	expires := time.Now().Add(seconds(job.TTR))
	for sleep(done, seconds(job.TTR/3)) == nil {
		sent := time.Now()
		ctx, cancel := context.WithTimeout(done, seconds(job.TTR/3))
		err := send(ctx, with(job, fields{"command": "touch"}), nil)
		cancel()
		var unavailable Unavailable
		if err == nil {
			expires = sent.Add(seconds(job.TTR))
		} else if !errors.As(err, &unavailable) || time.Now().After(expires) {
			markLost()
			return
		}
	}
}

// with adds the fencing token of a job to a command.
func with(job Job, command fields) fields {
	command["id"], command["topic"], command["job"], command["attempt"] = job.ID, topic, job.Job, job.Attempt
	return command
}

// printable returns what the server accepts as an error: printable and at most 4,000 characters.
func printable(err error) string {
	text := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			return r
		}
		return ' '
	}, err.Error())
	if runes := []rune(text); len(runes) > 4000 {
		return string(runes[:4000])
	}
	return text
}

func work(job Job) error {
	lost, markLost := context.WithCancel(context.Background())
	done, finish := context.WithCancel(context.Background())
	defer markLost()
	defer finish()
	go renewLease(done, job, markLost)
	outcome := fields{"command": "finish"}
	if err := handle(lost, job); err != nil {
		outcome = fields{"command": "release", "error": printable(err)} // after the topic's backoff
	}
	err := report(lost, with(job, outcome))
	var refused Refused
	var unavailable Unavailable
	switch {
	case errors.As(err, &refused) || errors.As(err, &unavailable):
		fmt.Printf("lease lost: %v\n", err)
		return nil
	case err == nil:
		fmt.Printf("%s: %s, attempt %d\n", outcome["command"], job.ID, job.Attempt)
	}
	return err
}

func consume(stop context.Context) error {
	fmt.Printf("waiting for %s\n", topic)
	for stop.Err() == nil {
		var job Job
		err := send(stop, fields{"command": "pop", "topic": topic, "wait": waitSeconds}, &job)
		var unavailable Unavailable
		switch {
		case err == nil && job.ID != "":
			if err := work(job); err != nil {
				return err
			}
		case stop.Err() != nil: // a job reserved at this moment is free again after its TTR at the latest
		case errors.As(err, &unavailable):
			fmt.Printf("unavailable: %v\n", err)
			_ = sleep(stop, unavailable.pause+time.Duration(rand.Int63n(int64(unavailable.pause)/5)))
		case err != nil:
			return err
		}
	}
	fmt.Println("stopped")
	return nil
}

func add(id string, takes string) error {
	count, err := strconv.ParseFloat(takes, 64)
	if err != nil {
		return err
	}
	body := fields{"seconds": count}
	command := fields{"command": "add", "topic": topic, "id": id, "delay": 1, "TTR": 60, "body": body}
	if err := send(context.Background(), command, nil); err != nil {
		return err
	}
	fmt.Printf("added %s, due in 1 s\n", id)
	return nil
}

func main() {
	stop, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	var err error
	switch arguments := append(os.Args[1:], "0"); {
	case arguments[0] != "add":
		err = consume(stop)
	case len(arguments) < 3:
		err = errors.New("./consume add ID [SECONDS]")
	default:
		err = add(arguments[1], arguments[2])
	}
	if err != nil {
		fail(err)
	}
}
