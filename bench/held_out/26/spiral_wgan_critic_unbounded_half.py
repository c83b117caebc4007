"""A Wasserstein GAN on a spiral, in float16. FAULT from the start: the penalty on the critic's gradient was left out: nothing bounds the critic, its output grows exponentially,
until it is Inf in float16.
Without Rangewatch: the critic's loss -0.06, -2.2, -13, -247, -12875 at steps 0, 20, 40, 60, 70, its output 0.08 to 4640 at 70; -Inf at 71, output Inf soon after, the
scale falls to 0.
Cause: forward_arithmetic, weight, regularization or learning_rate. Step: growth from the start, Inf at the step named above. Right: float16 / grow / penalty / norm.
Wrong: attention mask, all_reduce."""
EXPECT = {"cause": ["forward_arithmetic", "weight", "regularization", "learning_rate", "loss_scale"], "step": [0, 76], "place": None, "rank": None,
          "right": "(?i)float16|fp16|half|grow|penalt|norm|overflow|clip|range|bf16", "wrong": ["attention mask", "all_reduce"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(6119); torch.set_num_threads(1)


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


def spiral(n):
    r = torch.rand(n, 1)
    return 3 * r * torch.cat((torch.cos(6 * r), torch.sin(6 * r)), 1) + 2 + 0.02 * torch.randn(n, 2)


nets = nn.ModuleDict({"painter": mlp(4, 48, 48, 2), "critic": mlp(2, 64, 64, 1)})
paint_opt = torch.optim.RMSprop(nets["painter"].parameters(), lr=2e-5)
critic_opt = torch.optim.SGD(nets["critic"].parameters(), lr=0.004)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=100000)
handle = rangewatch.attach(nets, [paint_opt, critic_opt], scaler=scaler)
for step in range(240):
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.float16):
            real, fake = nets["critic"](spiral(64)), nets["critic"](nets["painter"](torch.randn(64, 4)).detach())
            critic_loss = fake.float().mean() - real.float().mean()
        critic_opt.zero_grad()
        scaler.scale(critic_loss).backward()
        scaler.step(critic_opt)
        scaler.update()
    with torch.autocast("cpu", dtype=torch.float16):
        paint_loss = -nets["critic"](nets["painter"](torch.randn(64, 4))).float().mean()
    paint_opt.zero_grad()
    scaler.scale(paint_loss).backward()
    scaler.step(paint_opt)
    scaler.update()
    if step % 20 == 0 or step == 239:
        print(step, "critic", critic_loss.item(), "painter", paint_loss.item(), "output", fake.abs().max().item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=critic_loss.item(), painter=paint_loss.item())
handle.detach()
