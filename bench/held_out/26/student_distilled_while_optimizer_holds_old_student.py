"""Distillation: a wide teacher with known rule, a narrow student. FAULT from the start: the student is rebuilt by deepcopy (`fresh start`) after the optimizer was made: the optimizer
holds the parameters of the old one, which never get a gradient; the student that is trained never moves.
Without Rangewatch: loss 2.57 at step 0, 2.82 at the end; the sum of the weights is 244.359 at each step.
Cause: optimizer or no_gradient. Step: any. Right: optimizer / parameters / other model. Wrong: GradScaler, lower the learning rate."""
EXPECT = {"cause": ["optimizer", "no_gradient"], "step": [0, 200], "place": None, "rank": None,
          "right": "(?i)optimizer|parameter|param_group|does not (move|change)|not (update|train|step)", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6115); torch.set_num_threads(1)
teacher = nn.Sequential(nn.Linear(18, 256), nn.Tanh(), nn.Linear(256, 7)).requires_grad_(False)
teacher[0].weight.mul_(3.0); teacher[2].weight.mul_(8.0)


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(18, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU())
        self.out = nn.Linear(40, 7)

    def forward(self, x):
        return self.out(self.inner(x))


class Distiller:
    def __init__(self, student, lr):
        self.student = student
        self.optimizer = torch.optim.Adagrad(self.student.parameters(), lr=lr)

    def fresh_start(self):
        self.student = copy.deepcopy(self.student)
        for m in self.student.modules():
            if isinstance(m, nn.Linear):
                m.reset_parameters()
        return self

    def step(self, x, heat=2.0):
        soft = (teacher(x) / heat).softmax(1)
        loss = F.kl_div((self.student(x) / heat).log_softmax(1), soft, reduction="batchmean") * heat ** 2
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


run = Distiller(Student(), lr=0.02).fresh_start()
handle = rangewatch.attach(run.student, run.optimizer)
for step in range(200):
    loss = run.step(torch.randn(96, 18))
    if step % 20 == 0 or step == 199:
        print(step, loss, "sum of weights", sum(p.abs().sum() for p in run.student.parameters()).item(), flush=True)
    handle.log(loss=loss)
handle.detach()
