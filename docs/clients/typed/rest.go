// One job from its creation to its end over REST. The package delaytasks is generated from the OpenAPI document.
//
//	go run rest.go order:1042
//
// Set DELAYTASKS_URL (https://tasks.example.com/api/queue/), DELAYTASKS_TOKEN and TOPIC in the environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"delaytasks-rest-example/delaytasks"
)

func setting(name string) string {
	value := os.Getenv(name)
	if value == "" {
		log.Fatalf("%s is not set.", name)
	}
	return value
}

// must returns an answer. It ends the program if the server refused the request.
func must[T any](answer T, response *http.Response, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return answer
}

func main() {
	site, err := url.Parse(setting("DELAYTASKS_URL"))
	if err != nil || len(os.Args) != 2 {
		log.Fatal("Set DELAYTASKS_URL, and give a key.")
	}
	topic, key := setting("TOPIC"), os.Args[1]
	config := delaytasks.NewConfiguration()
	config.Servers = delaytasks.ServerConfigurations{{URL: site.Scheme + "://" + site.Host}}
	config.HTTPClient = &http.Client{Timeout: 40 * time.Second}
	api := delaytasks.NewAPIClient(config)
	ctx := context.WithValue(context.Background(), delaytasks.ContextAccessToken, setting("DELAYTASKS_TOKEN"))

	newJob := delaytasks.NewJobRequest(topic, key)
	newJob.SetDelaySeconds(1)
	newJob.SetBody(map[string]string{"order": key})
	create := api.JobsAPI.CreateJobs(ctx).NewJobOrJobs(delaytasks.JobRequestAsNewJobOrJobs(newJob))
	made := must(create.Execute()).MadeJob // nil in the answer to many jobs
	fmt.Printf("%s %s as job %d\n", made.Result, made.Key, made.Id)

	// By default a second job with a live key is refused, with status 409.
	_, _, err = create.Execute()
	var refused *delaytasks.GenericOpenAPIError
	if errors.As(err, &refused) {
		if problem, ok := refused.Model().(delaytasks.LiveProblem); ok {
			fmt.Printf("refused: %s is live as job %d\n", key, problem.GetJobId())
		}
	}

	reserve := delaytasks.NewReserve()
	reserve.SetWaitSeconds(30)
	for _, job := range must(api.ConsumersAPI.ReserveJobs(ctx, topic).Reserve(*reserve).Execute()).Jobs {
		fmt.Printf("reserved %s, attempt %d\n", job.Key, job.Attempt)
		held := delaytasks.NewHeld(job.Attempt)
		ended := must(api.ConsumersAPI.FinishJob(ctx, job.Id).Held(*held).Execute())
		var outcomes []string
		for _, event := range must(api.JobsAPI.ReadJob(ctx, job.Id).Execute()).Events {
			outcomes = append(outcomes, string(event.Outcome))
		}
		fmt.Printf("%s %s: %s\n", ended.State, job.Key, strings.Join(outcomes, ", "))
	}
}
